/* SPDX-License-Identifier: Apache-2.0 */
/* Between values and JSON. */
#ifndef BATON_MODEL_TEMPLATE_JSON_H
#define BATON_MODEL_TEMPLATE_JSON_H

#include "template_value.h"

#include <jansson.h>

/* Strings stay where they are: the JSON must outlive the rendering. */
bool jinja_from_json(struct run *run, const json_t *json, struct value *out);

/* json.dumps of Python. */
struct json_style {
    bool ascii; /* \u escapes for everything else */
    bool sort_keys;
    bool pretty; /* a line per item, each indented by this: */
    struct text indent;
    struct text comma, colon; /* the separators */
};
bool jinja_to_json(struct run *run, struct value value, const struct json_style *style);

#endif
