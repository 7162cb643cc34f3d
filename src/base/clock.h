/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time. Tests may push it forward for the whole process, so that a deadline of five
 * minutes passes in a millisecond; nothing else in the library asks the kernel for the time. */
#ifndef BATON_BASE_CLOCK_H
#define BATON_BASE_CLOCK_H

#include <stdint.h>

uint64_t clock_now_ns(void);
void clock_advance_ns(uint64_t ns); /* tests only */

#define NS_PER_MS 1000000ull

#endif
