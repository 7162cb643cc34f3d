/* SPDX-License-Identifier: Apache-2.0 */
/* A weight matrix as the kernels want it: panels of 16 outputs, so that a vector holds the same
 * four inputs of several outputs, every output is summed in a lane of its own, and no sum ever
 * crosses lanes. What the numbers are does not change: each is what dequant.c says, bit for bit.
 *
 *   y = W x; panel p holds outputs 16p .. 16p+15 (zeros beyond the last), inputs ascending
 *
 *   float types    [input][16 outputs]
 *   quantised      [block of 32 inputs] { scales | minima | quants }
 *     8-bit quants    [8 groups][16 outputs][4 inputs]                                 512 bytes
 *     4-bit quants    [4 groups][16 outputs][4]  low nibble: input 4g+i                256 bytes
 *                                                high nibble: input 16+4g+i
 *     6-bit quants    the 4 low bits as above, before them the 2 high ones             384 bytes
 *                     [2 halves][16 outputs][4]  bits 2g, 2g+1: input 16 half + 4g+i
 *
 * The same bytes serve NEON (4 outputs a register), AVX2 (8) and AVX-512 (16). Parts of a matrix,
 * outputs in whole panels and inputs in whole blocks, are ranges of it: tensor-parallel ranks share
 * one copy. */
#ifndef BATON_ENGINE_PACKED_WEIGHT_H
#define BATON_ENGINE_PACKED_WEIGHT_H

#include "weight_arena.h"

#include "model/weights.h"

#include <stdbool.h>
#include <stdint.h>

#define PANEL_OUTPUTS 16
#define PACKED_BLOCK \
    32 /* inputs in a block; float types have no blocks, but ranges keep to it */

/* value = scale * quant + minimum */
enum packed_format {
    PACKED_F32,
    PACKED_F16,
    PACKED_BF16,
    PACKED_Q4_CENTRED,     /* Q4_0: half scale; the nibble stands for -8..7 */
    PACKED_Q4_HALF,        /* Q4_1: half scale, half minimum */
    PACKED_Q4_FLOAT,       /* Q4_K: float scale, float minimum */
    PACKED_Q8_HALF,        /* Q8_0, Q5_0: half scale */
    PACKED_Q8_FLOAT,       /* Q5_1, Q5_K: float scale, float minimum */
    PACKED_Q6_HALF_BLOCKS, /* Q6_K: half scale, times a whole number for each 16 inputs */
    PACKED_FORMAT_COUNT
};

struct packed_q4_centred {
    uint16_t scale[PANEL_OUTPUTS];
    uint8_t quants[4][PANEL_OUTPUTS][4];
};

struct packed_q4_half {
    uint16_t scale[PANEL_OUTPUTS];
    uint16_t minimum[PANEL_OUTPUTS];
    uint8_t quants[4][PANEL_OUTPUTS][4];
};

struct packed_q4_float {
    float scale[PANEL_OUTPUTS];
    float minimum[PANEL_OUTPUTS];
    uint8_t quants[4][PANEL_OUTPUTS][4];
};

struct packed_q8_half {
    uint16_t scale[PANEL_OUTPUTS];
    int8_t quants[8][PANEL_OUTPUTS][4];
};

struct packed_q8_float {
    float scale[PANEL_OUTPUTS];
    float minimum[PANEL_OUTPUTS];
    int8_t quants[8][PANEL_OUTPUTS][4];
};

struct packed_q6_half_blocks {
    uint16_t scale[PANEL_OUTPUTS];
    int8_t factor[2][PANEL_OUTPUTS]; /* of the scale, for inputs 0..15 and 16..31 */
    uint8_t high[2][PANEL_OUTPUTS][4];
    uint8_t quants[4][PANEL_OUTPUTS][4];
};

/* Of 16 outputs: a block of 32 inputs, or one input of a float type. */
static inline uint32_t packed_block_bytes(enum packed_format format)
{
    switch (format) {
    case PACKED_F16:
    case PACKED_BF16: return PANEL_OUTPUTS * sizeof(uint16_t);
    case PACKED_Q4_CENTRED: return sizeof(struct packed_q4_centred);
    case PACKED_Q4_HALF: return sizeof(struct packed_q4_half);
    case PACKED_Q4_FLOAT: return sizeof(struct packed_q4_float);
    case PACKED_Q8_HALF: return sizeof(struct packed_q8_half);
    case PACKED_Q8_FLOAT: return sizeof(struct packed_q8_float);
    case PACKED_Q6_HALF_BLOCKS: return sizeof(struct packed_q6_half_blocks);
    default: return PANEL_OUTPUTS * sizeof(float);
    }
}

/* The quants are the last part of every quantised block; those of six bits have their high ones before. */
#define PACKED_HIGH_BYTES sizeof(((struct packed_q6_half_blocks *)0)->high)

static inline bool packed_has_nibbles(enum packed_format format)
{
    return format != PACKED_Q8_HALF && format != PACKED_Q8_FLOAT;
}

static inline const uint8_t *packed_quants(enum packed_format format, const uint8_t *block)
{
    return block + packed_block_bytes(format) - (packed_has_nibbles(format) ? 256 : 512);
}

/* For functions whose format must be a constant: one for each, `what(format)` is a statement. */
#define PACKED_DISPATCH(format, what)                       \
    switch (format) {                                       \
    case PACKED_Q4_CENTRED: what(PACKED_Q4_CENTRED); break; \
    case PACKED_Q4_HALF: what(PACKED_Q4_HALF); break;       \
    case PACKED_Q4_FLOAT: what(PACKED_Q4_FLOAT); break;     \
    case PACKED_Q8_HALF: what(PACKED_Q8_HALF); break;       \
    case PACKED_Q8_FLOAT: what(PACKED_Q8_FLOAT); break;     \
    default: what(PACKED_Q6_HALF_BLOCKS);                   \
    }

struct packed_weight {
    enum packed_format format;
    uint32_t outputs, inputs;
    uint32_t panels;
    uint32_t panel_blocks; /* blocks (float types: inputs) in a panel */
    uint32_t block_bytes;  /* of 16 outputs */
    uint64_t panel_bytes;
    uint8_t *panels_data;
};

/* The format that a type of the file becomes. */
enum packed_format packed_format_of(enum tensor_type type);
bool packed_is_quantised(enum packed_format format);

/* Sets the shape and takes memory from the arena, which keeps it; ENOMEM. The panels are then filled
 * by packed_weight_fill, by as many threads as one likes, each its own range. */
int packed_weight_open(struct weight_arena *arena, const struct weight *source,
                       struct packed_weight *out, struct error err);
void packed_weight_fill(struct packed_weight *weight, const struct weight *source,
                        uint32_t panel_begin, uint32_t panel_end);

static inline const uint8_t *packed_weight_panel(const struct packed_weight *weight,
                                                 uint32_t panel)
{
    return weight->panels_data + panel * weight->panel_bytes;
}

/* The inputs of one output as floats: an embedding's row. */
void packed_weight_row(const struct packed_weight *weight, uint32_t output, float *out);

#endif
