# SPDX-License-Identifier: Apache-2.0
"""A whole Hugging Face model of random numbers, small, with the tokenizer of the unit tests: for what
only wants some model, or one whose shape is not that of the default one."""
import json
import pathlib
import shutil
import struct

import numpy

TOKENIZER = pathlib.Path(__file__).resolve().parents[1] / "model/golden/tokenizer_bytes.json"
TOKENS = 708  # of that tokenizer
CHAT_TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
NORMS = ("norm.weight", "layernorm.weight")


def shapes_of(config):
    hidden, ffn = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens": (config["vocab_size"], hidden),
              "lm_head": (config["vocab_size"], hidden), "model.norm": (hidden,)}
    layer = {"self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden),
             "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, queries),
             "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden),
             "mlp.down_proj": (hidden, ffn), "input_layernorm": (hidden,),
             "post_attention_layernorm": (hidden,)}
    if config["model_type"] == "qwen3":
        layer |= {"self_attn.q_norm": (config["head_dim"],), "self_attn.k_norm": (config["head_dim"],)}
    for i in range(config["num_hidden_layers"]):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def tensor_of(draw, name, shape):
    """Norms about 1; matrices such that no layer drowns the others."""
    if name.endswith(NORMS):
        return 1 + 0.1 * draw.standard_normal(shape, numpy.float32)
    return draw.standard_normal(shape, numpy.float32) * numpy.float32(1.5 / shape[1] ** 0.5)


def random_folder(folder, seed=1, chat_template=None, tokenizer=TOKENIZER, **config):
    """Makes the folder; `config` is what config.json shall say other than this."""
    config = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 64,
              "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32,
              "num_hidden_layers": 1, "vocab_size": TOKENS, "max_position_embeddings": 256,
              "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "bos_token_id": 0, "eos_token_id": 1,
              "tie_word_embeddings": False, **config}
    draw = numpy.random.default_rng(seed)
    header, data = {}, b""
    for name, shape in shapes_of(config).items():
        begin = len(data)
        data += tensor_of(draw, name, shape).astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(config))
    if chat_template:
        (folder / "chat_template.jinja").write_text(chat_template)
    shutil.copy(tokenizer, folder / "tokenizer.json")
    return str(folder)
