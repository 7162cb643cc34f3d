#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes rope_golden.h: the rotary frequencies that `transformers` computes for a head of 64 with
each kind of scaling. test_config.c compares.

usage: python3 -m venv V && V/bin/pip install torch transformers==5.22.2
       V/bin/python tests/model/make_rope_golden.py > tests/model/rope_golden.h
"""
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

CASES = {
    "default": {"rope_theta": 10000.0, "rope_type": "default"},
    "linear": {"rope_theta": 10000.0, "rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0,
               "high_freq_factor": 4.0, "original_max_position_embeddings": 8192},
}


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Made by make_rope_golden.py with transformers; do not edit. */")
    print("/* clang-format off */")
    for name, parameters in CASES.items():
        config = LlamaConfig(hidden_size=2048, num_attention_heads=32, head_dim=64,
                             max_position_embeddings=131072, rope_parameters=parameters)
        frequencies = LlamaRotaryEmbedding(config).inv_freq.to(torch.float32).tolist()
        print(f"static const float rope_{name}[{len(frequencies)}] = {{")
        for i in range(0, len(frequencies), 4):
            print("    " + " ".join(f"{value:.9g}f," if "." in f"{value:.9g}" or "e" in f"{value:.9g}"
                                    else f"{value:.9g}.0f," for value in frequencies[i:i + 4]))
        print("};")


if __name__ == "__main__":
    main()
