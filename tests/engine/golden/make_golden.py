#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden logits that test_golden.c compares with: small models with weights from a
formula (tiny_model.c has the same one), computed by `transformers` in float32.

For each model two files: NAME.json, its config.json, and NAME.txt, the tokens and the logits of some
positions. Run again only when a model is added; the files are part of the tree.

usage: python3 -m venv v && v/bin/pip install torch transformers && v/bin/python make_golden.py
"""
import json
import pathlib

import numpy as np
import torch
from transformers import (LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM)

TOKENS = 150
POSITIONS = [0, 1, 2, 17, 63, 64, 65, 127, 128, 149]


def splitmix(state):
    """The first number of a splitmix64 stream with this state."""
    z = (state + np.uint64(0x9E3779B97F4A7C15))
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def values(tensor, count):
    """count numbers in [-1, 1) for tensor number `tensor`."""
    with np.errstate(over="ignore"):
        state = (np.uint64(tensor) << np.uint64(32)) + np.arange(count, dtype=np.uint64)
        return ((splitmix(state) >> np.uint64(40)).astype(np.float32) / np.float32(8388608)
                - np.float32(1))


def filled(tensor, parameter):
    """Matrices keep the size of what they multiply; norms are around 1, biases small."""
    shape = tuple(parameter.shape)
    v = values(tensor, int(np.prod(shape))).reshape(shape)
    if len(shape) == 2:
        v = v * np.float32(2.0 / shape[1] ** 0.5)
    return v


ROLES = {
    "input_layernorm": 0, "self_attn.q_proj": 1, "self_attn.k_proj": 2, "self_attn.v_proj": 3,
    "self_attn.o_proj": 4, "bias.q": 5, "bias.k": 6, "bias.v": 7, "self_attn.q_norm": 8,
    "self_attn.k_norm": 9, "post_attention_layernorm": 10, "mlp.gate_proj": 11, "mlp.up_proj": 12,
    "mlp.down_proj": 13,
}


def fill(model, tied):
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name == "model.embed_tokens.weight":
                v = values(0, parameter.numel()).reshape(parameter.shape)
            elif name == "model.norm.weight":
                v = 1 + np.float32(0.2) * values(1, parameter.numel())
            elif name == "lm_head.weight":
                assert not tied
                v = filled(2, parameter)
            else:
                _, _, layer, rest = name.split(".", 3)
                role = rest.rsplit(".", 1)[0]
                if rest.endswith(".bias"):
                    role = "bias." + role[len("self_attn.")]
                number = 3 + 16 * int(layer) + ROLES[role]
                v = filled(number, parameter)
                if "norm" in role:
                    v = 1 + np.float32(0.2) * v
                elif role.startswith("bias"):
                    v = np.float32(0.3) * v
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(v, dtype=np.float32)))


def make(name, model_class, config):
    torch.manual_seed(0)
    model = model_class(config).eval().float()
    fill(model, config.tie_word_embeddings)
    tokens = [(i * 31 + 7) % config.vocab_size for i in range(TOKENS)]
    with torch.no_grad():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()
    text = json.loads(config.to_json_string(use_diff=False))
    text["architectures"] = [model_class.__name__]
    keep = ["architectures", "model_type", "hidden_size", "intermediate_size", "num_hidden_layers",
            "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
            "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_scaling",
            "tie_word_embeddings", "attention_bias", "mlp_bias", "hidden_act"]
    folder = pathlib.Path(__file__).parent
    (folder / f"{name}.json").write_text(
        json.dumps({k: text[k] for k in keep if k in text}, indent=1) + "\n")
    with open(folder / f"{name}.txt", "w") as file:
        print("# SPDX-License-Identifier: Apache-2.0", file=file)
        print("# made by make_golden.py: tokens; then position and logits, a line each", file=file)
        print(len(tokens), *tokens, file=file)
        print(len(POSITIONS), config.vocab_size, file=file)
        for position in POSITIONS:
            print(position, *(f"{x:.8g}" for x in logits[position]), file=file)
    print(name, "largest logit", abs(logits).max())


COMMON = dict(hidden_size=96, intermediate_size=160, num_hidden_layers=2, num_attention_heads=6,
              num_key_value_heads=2, vocab_size=80, max_position_embeddings=512,
              attn_implementation="eager", torch_dtype="float32")

make("llama", LlamaForCausalLM, LlamaConfig(**COMMON, head_dim=16, rope_theta=10000.0,
                                            tie_word_embeddings=False))
make("llama3", LlamaForCausalLM, LlamaConfig(
    **COMMON, head_dim=32, rope_theta=500000.0, tie_word_embeddings=True,
    rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                      original_max_position_embeddings=64)))
make("qwen2", Qwen2ForCausalLM, Qwen2Config(**COMMON, rope_theta=1000000.0,
                                            tie_word_embeddings=True))
make("qwen3", Qwen3ForCausalLM, Qwen3Config(**COMMON, head_dim=32, rope_theta=1000000.0,
                                            tie_word_embeddings=False))
