/* SPDX-License-Identifier: Apache-2.0 */
/* Python's two ways to put values into a string. */
#ifndef BATON_MODEL_TEMPLATE_FORMAT_H
#define BATON_MODEL_TEMPLATE_FORMAT_H

#include "template_builtin.h"

/* 'a %s' % values: a tuple, a dict for %(name)s, or one value. */
bool jinja_format_percent(struct run *run, struct value format, struct value values,
                          struct value *out);
/* 'a {} {0} {name}'.format(...) */
bool jinja_format_braces(struct run *run, struct value format,
                         const struct arguments *arguments, struct value *out);

/* How one value is to be written; what both ways have in common. */
struct format_spec {
    char fill[4]; /* a character in UTF-8 */
    uint32_t fill_length;
    char align;        /* '<', '>', '^', '=' (after the sign), or 0: by type */
    char sign;         /* '+', ' ' or 0 */
    bool alternate;    /* # */
    char grouping;     /* ',', '_' or 0 */
    int32_t width;     /* 0: none */
    int32_t precision; /* -1: none */
    char type;         /* of the conversion; 0: none was named */
};
#define FORMAT_WIDTH_MAX 100000

/* Writes a number or a string by its spec; the value's type must fit the spec's. */
bool jinja_format_number(struct run *run, struct value number, const struct format_spec *spec);
bool jinja_format_string(struct run *run, struct text text, const struct format_spec *spec);

#endif
