/* SPDX-License-Identifier: Apache-2.0 */
/* Everything that must be true of a prefix cache between two calls, looked at from inside. */
#ifndef BATON_TESTS_KV_PREFIX_CHECK_H
#define BATON_TESTS_KV_PREFIX_CHECK_H

#include "kv/prefix_cache.h"

/* NULL when all is well, else what is not. */
const char *prefix_check(const struct prefix_cache *cache);

#endif
