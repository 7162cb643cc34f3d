/* SPDX-License-Identifier: Apache-2.0 */
/* The values of a template: Python's, as far as templates can tell. A value is three words that
 * are copied freely; what it points to lives in the arena of its rendering (or, for constants, in
 * that of the template; for the context's strings, in the caller's JSON) and is freed with it. */
#ifndef BATON_MODEL_TEMPLATE_VALUE_H
#define BATON_MODEL_TEMPLATE_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum value_type {
    VALUE_MISSING, /* a variable without a value, an argument that was not given; never seen by
                      templates, which get VALUE_UNDEFINED instead */
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOLEAN,
    VALUE_INTEGER,
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_DICT,
    VALUE_VIEW,     /* what keys(), values() and items() return */
    VALUE_RANGE,    /* what range() returns */
    VALUE_ITERATOR, /* what map, select and such return: can be walked through once */
    VALUE_NAMESPACE,
    VALUE_LOOP,
    VALUE_MACRO,
    VALUE_FUNCTION,
    VALUE_METHOD, /* a method and the value it belongs to */
};

/* The detail of a view. */
enum { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

struct value {
    uint8_t type;
    bool markup;     /* string: it went through safe or escape, so + escapes the other side */
    uint8_t detail;  /* undefined: type of what lacks the attribute; view: which one */
    uint32_t length; /* string: bytes; undefined: bytes of the name */
    union {
        bool boolean;
        int64_t integer;
        double number;
        const char *bytes; /* string: UTF-8, no NUL after it; undefined: the name */
        struct list *list; /* list, tuple */
        struct dict *dict; /* dict, view, namespace */
        struct range *range;
        struct iterator *iterator;
        struct loop *loop;
        struct macro *macro;
        const struct builtin *function;
        struct method *method;
    };
    struct buffer *buffer; /* string: where there may be room after it, or NULL */
};

struct list {
    struct value *items;
    size_t count, capacity;
};

struct entry {
    struct value key, value;
    uint64_t hash;
};

/* In order of insertion. The index is a hash table of entry numbers + 1, there only from
 * DICT_LINEAR entries on: most dicts of a conversation are smaller. */
struct dict {
    struct entry *entries;
    size_t count, capacity;
    uint32_t *index;
    size_t index_size; /* a power of 2 */
};

struct range {
    int64_t start, step;
    size_t count;
    int64_t stop; /* as it was given, for printing */
};

struct iterator {
    struct list *items;
    size_t next;
};

struct method {
    const struct builtin *builtin;
    struct value subject;
};

/* The bytes of strings that grew by +: as long as `used` ends where a string ends, the next + can
 * put its right side there instead of copying the left one. Templates build whole prompts by
 * `ns.text = ns.text + part`. */
struct buffer {
    size_t used, capacity;
    char bytes[];
};

/* A name or a piece of text in the template. */
struct text {
    const char *bytes;
    uint32_t length;
};

#define TEXT(literal) ((struct text){(literal), sizeof(literal) - 1})
bool jinja_text_is(struct text text, const char *word);

static inline struct value value_of(enum value_type type)
{
    return (struct value){.type = (uint8_t)type};
}

static inline struct value value_boolean(bool boolean)
{
    return (struct value){.type = VALUE_BOOLEAN, .boolean = boolean};
}

static inline struct value value_integer(int64_t integer)
{
    return (struct value){.type = VALUE_INTEGER, .integer = integer};
}

static inline struct value value_float(double number)
{
    return (struct value){.type = VALUE_FLOAT, .number = number};
}

/* Borrows the bytes. */
static inline struct value value_string(const char *bytes, size_t length)
{
    return (struct value){.type = VALUE_STRING, .bytes = bytes, .length = (uint32_t)length};
}

static inline struct value value_undefined(struct text name, enum value_type owner)
{
    return (struct value){.type = VALUE_UNDEFINED,
                          .detail = (uint8_t)owner,
                          .bytes = name.bytes,
                          .length = name.length};
}

static inline bool value_given(struct value value)
{
    return value.type != VALUE_MISSING;
}

static inline struct text value_text(struct value string)
{
    return (struct text){string.bytes, string.length};
}

/* For sentences: "a list", "none", "undefined". */
const char *jinja_type_name(struct value value);

/* Is it true in an `if`? */
bool jinja_truth(struct value value);

struct run;

/* Functions that take a run return false when they failed; the run then knows why. */

bool jinja_list_new(struct run *run, enum value_type type, size_t capacity, struct value *out);
bool jinja_list_append(struct run *run, struct list *list, struct value item);
/* Of two items, in this order. */
bool jinja_pair_new(struct run *run, struct value first, struct value second,
                    struct value *out);
bool jinja_iterator_new(struct run *run, struct list *items, struct value *out);

bool jinja_dict_new(struct run *run, enum value_type type, struct value *out);
/* Fails for keys that cannot be hashed. */
bool jinja_dict_set(struct run *run, struct dict *dict, struct value key, struct value value);
bool jinja_dict_get(struct run *run, const struct dict *dict, struct value key,
                    struct entry **out); /* NULL: it is not there */
struct entry *jinja_dict_find(struct run *run, const struct dict *dict, struct text key);
bool jinja_dict_remove(struct run *run, struct dict *dict, struct entry *entry);
bool jinja_dict_copy(struct run *run, const struct dict *from, struct dict *to);

/* len(value); fails for what has none. */
bool jinja_length(struct run *run, struct value value, size_t *out);
bool jinja_has_length(struct value value);

/* for item in value. An iteration over a list sees what is appended meanwhile. */
struct iteration {
    struct value source;
    size_t next; /* item, or byte of a string */
};
bool jinja_iterable(struct value value);
bool jinja_iterate(struct run *run, struct value source, struct iteration *out);
/* item->type is VALUE_MISSING at the end. */
bool jinja_iterate_next(struct run *run, struct iteration *iteration, struct value *item);
/* list(value): always a new list. */
bool jinja_list_from(struct run *run, struct value source, struct value *out);
int64_t jinja_range_item(const struct range *range, size_t index);

#endif
