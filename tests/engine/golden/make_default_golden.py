#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes default_model.txt: greedy continuations of a few prompts by the default model, computed by
`transformers` in float32 from the dequantised weights of the GGUF file, with the gap between the two
best logits at every step. test_default_model.c expects the same tokens wherever the gap is not
within what rounding activations to 8 bits can turn.

usage: python3 -m venv v && v/bin/pip install torch transformers gguf accelerate
       v/bin/python make_default_golden.py SmolLM2-135M-Instruct.Q4_1.gguf
"""
import pathlib
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "<|im_start|>user\nWhat is the tallest mountain on Earth?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a haiku about autumn.<|im_end|>\n<|im_start|>assistant\n",
    "The three primary colors are red, yellow, and",
    "Water boils at 100 degrees Celsius because",
    "1, 1, 2, 3, 5, 8, 13,",
]
LENGTH = 40


def main():
    path = pathlib.Path(sys.argv[1])
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name,
                                                 torch_dtype=torch.float32).eval()
    out = pathlib.Path(__file__).with_name("default_model.txt").open("w")
    print("# SPDX-License-Identifier: Apache-2.0", file=out)
    print("# made by make_default_golden.py; of each prompt: its tokens; the continuation; the gaps",
          file=out)
    print(len(PROMPTS), file=out)
    for prompt in PROMPTS:
        tokens = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        row, gaps, cache, new = list(tokens), [], None, tokens
        with torch.no_grad():
            for _ in range(LENGTH):
                result = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
                cache = result.past_key_values
                best = result.logits[0, -1].topk(2)
                gaps.append(float(best.values[0] - best.values[1]))
                new = [int(best.indices[0])]
                row += new
        print(repr(tokenizer.decode(row)))
        print(len(tokens), *tokens, file=out)
        print(LENGTH, *row[len(tokens):], file=out)
        print(LENGTH, *(f"{gap:.4f}" for gap in gaps), file=out)


main()
