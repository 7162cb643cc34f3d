# SPDX-License-Identifier: Apache-2.0
"""A whole Hugging Face model of random numbers, tiny, with the tokenizer of the unit tests: for what
only wants some model, and where the default one cannot be had."""
import json
import pathlib
import random
import shutil
import struct

TOKENIZER = pathlib.Path(__file__).resolve().parents[1] / "model/golden/tokenizer_bytes.json"
VOCABULARY = 708  # of that tokenizer


def folder_make(folder, vocabulary=VOCABULARY, layers=1, kv_heads=1, context=256, tokenizer=TOKENIZER):
    hidden, ffn, heads, dim = 64, 64, 2, 32
    block = {"self_attn.q_proj": (heads * dim, hidden), "self_attn.k_proj": (kv_heads * dim, hidden),
             "self_attn.v_proj": (kv_heads * dim, hidden), "self_attn.o_proj": (hidden, heads * dim),
             "mlp.gate_proj": (ffn, hidden), "mlp.up_proj": (ffn, hidden),
             "mlp.down_proj": (hidden, ffn), "input_layernorm": (hidden,),
             "post_attention_layernorm": (hidden,)}
    shapes = {"model.embed_tokens.weight": (vocabulary, hidden),
              "lm_head.weight": (vocabulary, hidden), "model.norm.weight": (hidden,)}
    shapes |= {f"model.layers.{layer}.{name}.weight": shape
               for layer in range(layers) for name, shape in block.items()}
    draw = random.Random(1)
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        begin = len(data)
        data += struct.pack(f"<{count}f", *(draw.uniform(-0.1, 0.1) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": hidden,
        "intermediate_size": ffn, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": dim, "num_hidden_layers": layers, "vocab_size": vocabulary,
        "max_position_embeddings": context, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
        "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False}))
    shutil.copy(tokenizer, folder / "tokenizer.json")
    return str(folder)
