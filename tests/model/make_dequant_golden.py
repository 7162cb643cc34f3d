#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes dequant_golden.h: blocks of random bytes of every tensor type, and the floats that
another implementation, the PyPI package `gguf`, reads in them. test_dequant.c compares.

The bytes are random, the scales among them too, as long as they are finite and of a size that a
model could have: every bit of a block then matters to the result.

usage: python3 -m venv V && V/bin/pip install gguf==0.19.0
       V/bin/python tests/model/make_dequant_golden.py > tests/model/dequant_golden.h
"""
import gguf
import numpy as np

SEED = 20261115
TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]
# Where the half-precision scales of a block are.
HALVES = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
HALF_BITS = [0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x83ff, 0x3c00, 0xbc00, 0x3555,
             0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0x2e66, 0x0200]


def random_half(random):
    scale = np.float16(random.uniform(1e-4, 0.5) * random.choice([-1, 1]))
    return np.frombuffer(scale.tobytes(), np.uint8)


def random_row(random, name, blocks, bytes_per_block):
    row = random.integers(0, 256, (blocks, bytes_per_block), dtype=np.uint8)
    for block in row:
        for place in HALVES.get(name, []):
            block[place:place + 2] = random_half(random)
    if name in ("F32", "F16", "BF16"):
        values = random.normal(0, 1, blocks)
        if name == "F32":
            row = values.astype(np.float32).view(np.uint8)
        elif name == "F16":
            row = values.astype(np.float16).view(np.uint8)
        else:
            row = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    return row.reshape(-1)


def print_list(values, form, per_line):
    for i in range(0, len(values), per_line):
        print("    " + " ".join(form % value + "," for value in values[i:i + per_line]))


def main():
    random = np.random.default_rng(SEED)
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print("/* Made by make_dequant_golden.py with gguf's own dequantize; do not edit. */")
    print("/* clang-format off */")
    rows = []
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        values, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = {1: 16, 32: 3, 256: 2}[values]
        row = random_row(random, name, blocks, size)
        if name == "F32":
            floats = row.view(np.float32)
        elif name == "F16":
            floats = row.view(np.float16).astype(np.float32)
        else:
            floats = gguf.dequantize(row, kind).astype(np.float32)
        assert floats.size == blocks * values and np.isfinite(floats).all(), name
        lower = name.lower()
        print(f"\nstatic const uint8_t bytes_{lower}[{row.size}] = {{")
        print_list(row, "0x%02x", 16)
        print(f"}};\nstatic const uint32_t floats_{lower}[{floats.size}] = {{")
        print_list(floats.view(np.uint32), "0x%08x", 8)
        print("};")
        rows.append(f"    {{TENSOR_{name}, bytes_{lower}, floats_{lower}, {floats.size}}},")
    print("\nstatic const struct {\n    enum tensor_type type;\n    const uint8_t *bytes;")
    print("    const uint32_t *floats;\n    uint32_t count;\n} golden_rows[] = {")
    print("\n".join(rows) + "\n};")
    halves = np.array(HALF_BITS, np.uint16)
    floats = halves.view(np.float16).astype(np.float32).view(np.uint32)
    print("\nstatic const struct {\n    uint16_t half;\n    uint32_t single;\n} golden_halves[] = {")
    print_list(list(zip(halves, floats)), "{0x%04x, 0x%08x}", 4)
    print("};")


if __name__ == "__main__":
    main()
