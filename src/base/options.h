/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines from tables. A subcommand is one struct command with its options; parsing, the
 * text of --help and the man page all come from it, so that they cannot drift apart. */
#ifndef BATON_BASE_OPTIONS_H
#define BATON_BASE_OPTIONS_H

#include "error.h"

#include <stdio.h>

enum option_type {
    OPTION_BOOL,    /* bool: --name, --name=true, --name=false */
    OPTION_U32,     /* uint32_t */
    OPTION_U64,     /* uint64_t; both take K, M and G for powers of 1024 */
    OPTION_REAL,    /* double, not negative; min and max do not apply */
    OPTION_STRING,  /* const char *, pointing into argv or the table */
    OPTION_STRINGS, /* struct option_strings: a,b,c */
    OPTION_NUMBERS, /* struct option_numbers: 1,2K,3M */
    OPTION_REPEATED /* struct option_repeated: every use adds one, the last does not win */
};

#define OPTION_ITEMS_MAX 32
#define OPTION_ITEM_BYTES 64

struct option_strings {
    uint32_t count;
    char items[OPTION_ITEMS_MAX][OPTION_ITEM_BYTES];
};

struct option_numbers {
    uint32_t count;
    uint64_t items[OPTION_ITEMS_MAX];
};

/* Points into argv. `second` is the optional word after the value ("--prefill URL 8998"); NULL:
 * there was none. */
#define OPTION_REPEATED_MAX 256
struct option_repeated {
    uint32_t count;
    struct option_use {
        const char *value, *second;
    } items[OPTION_REPEATED_MAX];
};

#define OPTION_REQUIRED 1u
#define OPTION_HIDDEN 2u /* neither in help nor in the man page */

struct option {
    const char *name; /* without the dashes */
    const char
        *aliases; /* "a|b": other spellings, such as those of other programs; NULL: none */
    enum option_type type;
    size_t offset;       /* of the variable in the struct that options_parse fills */
    const char *value;   /* what help calls the value: "N", "HOST"; not for booleans */
    const char *second;  /* of a repeated one: an optional word after the value; NULL: none */
    const char *initial; /* the default, parsed as if given; NULL: 0, false, NULL or empty */
    const char *choices; /* "a|b|c": nothing else is accepted; NULL: anything */
    uint64_t min, max;   /* of numbers; max 0: none but that of the type */
    uint32_t flags;
    const char *help;
};

struct command {
    const char *name;     /* "bench transfer" */
    const char *summary;  /* half a sentence for the list of commands */
    const char *text;     /* paragraphs separated by an empty line; NULL: none */
    const char *operands; /* "MODEL"; NULL: none are taken */
    uint32_t operand_min, operand_max;
    const struct option *options;
    uint32_t option_count;
    uint32_t flags; /* OPTION_HIDDEN */
};

#define OPTION_OPERANDS_MAX 16
struct option_operands {
    uint32_t count;
    const char *items[OPTION_OPERANDS_MAX];
};

/* Someone asked for --help or -h: not an error, and nothing was filled in. */
#define OPTIONS_HELP 2

/* argv starts after the command's own words. Sets every variable of the table in `values`: what
 * was given, otherwise its default; the last one counts. Everything after "--" is an operand.
 * Returns 0, OPTIONS_HELP, or EINVAL with a sentence; `operands` may be NULL if none
 * are taken. */
int options_parse(const struct command *command, int argc, char **argv, void *values,
                  struct option_operands *operands, struct error err);

/* The option that the word --name or --name=VALUE means, by any of its spellings; NULL: none. */
const struct option *options_find(const struct command *command, const char *word);

/* "usage: ..." and all options, wrapped to a terminal. */
void options_help(const struct command *command, const char *program, FILE *out);

/* The command's part of a man page (roff, man macros), beginning with .SS. */
void options_man(const struct command *command, const char *program, FILE *out);

/* Text with what roff would read as a command or an escape made harmless. */
void options_man_text(const char *text, FILE *out);

/* Of `names` the one that the word was probably meant to be; NULL if none is near. */
const char *options_suggest(const char *word, const char *const *names, uint32_t count);

/* "4096", "96K", "1G". EINVAL with a sentence that names what it was for. */
int options_number(const char *text, const char *what, uint64_t min, uint64_t max,
                   uint64_t *out, struct error err);

#endif
