/* SPDX-License-Identifier: Apache-2.0 */
/* The blocks of the quantised types, byte for byte as they lie in a GGUF file. dequant.c says
 * what the numbers mean; kernels may repack them. All are little-endian; a uint16_t
 * here is the bits of an IEEE binary16. Alignment is 2.
 *
 * The types of 32 values keep value i in the low nibble of quants[i] and value i + 16 in the
 * high nibble. The K types have 256 values in 8 sub-blocks of 32 (Q6_K: 16 of 16), each with a
 * small scale of its own beside the block's. */
#ifndef BATON_MODEL_TENSOR_BLOCKS_H
#define BATON_MODEL_TENSOR_BLOCKS_H

#include <stdint.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "model files are little-endian, and are used where they are mapped"
#endif

#define BLOCK_VALUES 32
#define BLOCK_K_VALUES 256
#define BLOCK_K_SCALE_BYTES 12

struct block_q4_0 { /* 18 bytes: scale * (quant - 8) */
    uint16_t scale;
    uint8_t quants[16];
};

struct block_q4_1 { /* 20 bytes: scale * quant + minimum */
    uint16_t scale, minimum;
    uint8_t quants[16];
};

struct block_q5_0 { /* 22 bytes: scale * (quant - 16); bit i of `high` is value i's fifth */
    uint16_t scale;
    uint8_t high[4];
    uint8_t quants[16];
};

struct block_q5_1 { /* 24 bytes: scale * quant + minimum */
    uint16_t scale, minimum;
    uint8_t high[4];
    uint8_t quants[16];
};

struct block_q8_0 { /* 34 bytes: scale * quant */
    uint16_t scale;
    int8_t quants[32];
};

/* 144 bytes: scale * s * quant - minimum * m, with 6-bit s and m for each 32 values:
 *
 *   sub-block j < 4     s = scales[j] & 63       m = scales[j + 4] & 63
 *   sub-block j >= 4    s = scales[j + 4] & 15 | scales[j - 4] >> 6 << 4
 *                       m = scales[j + 4] >> 4 | scales[j] >> 6 << 4
 *
 * 32 bytes of quants hold two sub-blocks: the even one in the low nibbles. */
struct block_q4_k {
    uint16_t scale, minimum;
    uint8_t scales[BLOCK_K_SCALE_BYTES];
    uint8_t quants[128];
};

struct block_q5_k { /* 176 bytes: as q4_k; bit j of high[i] is the fifth of value 32 * j + i */
    uint16_t scale, minimum;
    uint8_t scales[BLOCK_K_SCALE_BYTES];
    uint8_t high[32];
    uint8_t quants[128];
};

/* 210 bytes: scale * scales[value / 16] * (quant - 32). Each half of 128 values has 64 bytes of
 * `low` and 32 of `high`; its value 32 * j + i, j = 0..3, is
 *
 *   low nibble (j < 2) or high nibble of low[32 * (j & 1) + i], and bits 2j, 2j+1 of high[i] */
struct block_q6_k {
    uint8_t low[128];
    uint8_t high[64];
    int8_t scales[16];
    uint16_t scale;
};

_Static_assert(sizeof(struct block_q4_0) == 18, "q4_0");
_Static_assert(sizeof(struct block_q4_1) == 20, "q4_1");
_Static_assert(sizeof(struct block_q5_0) == 22, "q5_0");
_Static_assert(sizeof(struct block_q5_1) == 24, "q5_1");
_Static_assert(sizeof(struct block_q8_0) == 34, "q8_0");
_Static_assert(sizeof(struct block_q4_k) == 144, "q4_k");
_Static_assert(sizeof(struct block_q5_k) == 176, "q5_k");
_Static_assert(sizeof(struct block_q6_k) == 210, "q6_k");

#endif
