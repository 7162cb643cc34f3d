/* SPDX-License-Identifier: Apache-2.0 */
/* Filters, tests, methods and global functions: all are C functions of one shape, in tables that
 * say what they are called and which arguments they take. */
#ifndef BATON_MODEL_TEMPLATE_BUILTIN_H
#define BATON_MODEL_TEMPLATE_BUILTIN_H

#include "template_value.h"

struct run;

struct keyword {
    struct text name;
    struct value value;
};

struct arguments {
    struct value *positional;
    size_t positional_count;
    struct keyword *keywords;
    size_t keyword_count;
};

#define PARAMETERS_MAX 5

struct call {
    struct value subject; /* what is filtered or tested, whose method it is */
    struct value
        given[PARAMETERS_MAX];         /* in the order of the table; missing ones are missing */
    const struct arguments *arguments; /* as they came, for those that take any */
};

struct builtin {
    const char *name;
    bool (*function)(struct run *run, const struct call *call, struct value *out);
    uint8_t required; /* the first so many parameters must be given */
    bool any;         /* takes any arguments, unchecked */
    const char *parameters[PARAMETERS_MAX];
};

/* An item of a table: name, function, how many parameters are required, their names. */
#define BUILTIN(name_, function_, required_, ...)                                          \
    {                                                                                      \
        .name = (name_), .function = (function_), .required = (required_), .parameters = { \
            __VA_ARGS__                                                                    \
        }                                                                                  \
    }
#define BUILTIN_ANY(name_, function_)                         \
    {                                                         \
        .name = (name_), .function = (function_), .any = true \
    }

/* A table of builtins. */
struct builtin_table {
    const struct builtin *items;
    size_t count;
};
#define BUILTIN_TABLE(array)                        \
    {                                               \
        (array), sizeof(array) / sizeof((array)[0]) \
    }

const struct builtin *jinja_builtin_find(struct builtin_table table, struct text name);
/* Matches the arguments with the parameters, then calls. */
bool jinja_builtin_call(struct run *run, const struct builtin *builtin, struct value subject,
                        const struct arguments *arguments, struct value *out);

/* What there is; NULL: no such thing. */
const struct builtin *jinja_filter_find(struct text name);
const struct builtin *jinja_test_find(struct text name);
const struct builtin *jinja_function_find(struct text name);

/* The tables, each in the file of its name. */
extern const struct builtin_table jinja_text_filters, jinja_number_filters, jinja_list_filters,
    jinja_order_filters, jinja_select_filters, jinja_json_filters;
extern const struct builtin_table jinja_tests, jinja_functions;
extern const struct builtin_table jinja_string_methods, jinja_split_methods, jinja_list_methods,
    jinja_tuple_methods, jinja_dict_methods, jinja_loop_methods;

/* The methods of one name, by the type they belong to; looked up when the template is compiled. */
struct method_set {
    const struct builtin *of_string, *of_list, *of_tuple, *of_dict, *of_loop;
};
struct method_set jinja_methods_find(struct text name);
const struct builtin *jinja_method_of(const struct method_set *methods, enum value_type type);
/* A method that Python's strings, lists or dicts have and these do not. */
bool jinja_method_unsupported(struct text name);
/* A function that jinja2 has and this has not. */
bool jinja_function_unsupported(struct text name);

/* dict.update(...), which is also how dict(...) and namespace(...) are filled. */
bool jinja_dict_update(struct run *run, struct dict *dict, const struct arguments *arguments);
/* A test, called: also for select and its kin. */
bool jinja_test_call(struct run *run, const struct builtin *test, struct value subject,
                     const struct arguments *arguments, bool *out);

#endif
