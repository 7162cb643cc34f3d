/* SPDX-License-Identifier: Apache-2.0 */
/* What the two readers of configurations share. Each fills in what its source says; then
 * model_config_finish judges the whole, so that both are held to the same rules. */
#ifndef BATON_MODEL_MODEL_CONFIG_PARTS_H
#define BATON_MODEL_MODEL_CONFIG_PARTS_H

#include "model_config.h"

#include <stddef.h>

/* Everything that a source may leave unsaid. */
void model_config_init(struct model_config *config);

/* Adds an end-of-sequence token once. ELIMIT when there are too many. */
int model_config_add_eos(struct model_config *config, int64_t token, const char *path,
                         struct error err);

/* The name as it may be shown: what is not printable becomes '?'. Of an empty one, the last part
 * of the path. */
void model_config_set_name(struct model_config *config, const char *bytes, size_t length,
                           const char *path);

/* Checks all ranges and relations, and works out rope_divisors (unless they are given:
 * ROPE_SCALING_FACTORS). */
int model_config_finish(struct model_config *config, const char *path, struct error err);

/* The sentence for a model of another kind. */
int model_family_refuse(const char *path, const char *name, size_t length, struct error err);

#endif
