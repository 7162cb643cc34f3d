/* SPDX-License-Identifier: Apache-2.0 */
/* What the processor itself can do, measured: the figures that the engine's are divided by. */
#ifndef BATON_CLI_BENCH_ENGINE_LIMITS_H
#define BATON_CLI_BENCH_ENGINE_LIMITS_H

#include "base/error.h"

struct engine_limits {
    const char *instruction;  /* of the integer products; NULL: none that is known here */
    double integer_gops_each; /* 8-bit multiplications and additions of a core, 10^9 a second,
                                 all threads at work */
    double read_gbps_one;     /* reading memory: one thread alone */
    double read_gbps_all;     /* all threads together */
};

int engine_limits_measure(uint32_t threads, struct engine_limits *out, struct error err);

#endif
