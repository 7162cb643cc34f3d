/* SPDX-License-Identifier: Apache-2.0 */
/* Parsing of command lines, and what is printed about them. getopt_long is not used, because it
 * knows neither types nor defaults nor spelling mistakes, and would need every option twice.
 *
 * Defaults go through the same parser as what a person types. A default that does not parse is
 * a mistake in a table, so it stops the process; everything that was typed only gets a
 * sentence. */
#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HELP_COLUMNS 92
#define HELP_INDENT 8
#define SUGGEST_LENGTH_MAX 48

/* ---- spelling ---------------------------------------------------------------------------- */

static uint32_t minimum(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Insertions, deletions, replacements and swaps of neighbours that turn a into b. */
static uint32_t edit_distance(const char *a, const char *b)
{
    uint32_t length_a = (uint32_t)strlen(a), length_b = (uint32_t)strlen(b);
    if (length_a > SUGGEST_LENGTH_MAX || length_b > SUGGEST_LENGTH_MAX)
        return UINT32_MAX;
    uint32_t rows[3][SUGGEST_LENGTH_MAX + 1];
    for (uint32_t j = 0; j <= length_b; j++)
        rows[0][j] = j;
    for (uint32_t i = 1; i <= length_a; i++) {
        uint32_t *now = rows[i % 3], *before = rows[(i + 2) % 3], *earlier = rows[(i + 1) % 3];
        now[0] = i;
        for (uint32_t j = 1; j <= length_b; j++) {
            uint32_t best = before[j - 1] + (a[i - 1] != b[j - 1]);
            best = minimum(best, minimum(before[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = minimum(best, earlier[j - 2] + 1);
            now[j] = best;
        }
    }
    return rows[length_a % 3][length_b];
}

const char *options_suggest(const char *word, const char *const *names, uint32_t count)
{
    const char *nearest = NULL;
    uint32_t nearest_distance = 1 + (uint32_t)strlen(word) / 3;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t distance = edit_distance(word, names[i]);
        if (strlen(word) >= 3 && strncmp(word, names[i], strlen(word)) == 0)
            distance = minimum(distance, 1); /* the beginning of a longer name */
        if (distance <= nearest_distance && (!nearest || distance < nearest_distance)) {
            nearest = names[i];
            nearest_distance = distance;
        }
    }
    return nearest;
}

/* ---- values ------------------------------------------------------------------------------ */

static int number_suffix(const char *text, uint32_t *shift)
{
    if (!*text) {
        *shift = 0;
        return 1;
    }
    if (text[1])
        return 0;
    switch (*text) {
    case 'k':
    case 'K': *shift = 10; return 1;
    case 'm':
    case 'M': *shift = 20; return 1;
    case 'g':
    case 'G': *shift = 30; return 1;
    default: return 0;
    }
}

int options_number(const char *text, const char *what, uint64_t min, uint64_t max,
                   uint64_t *out, struct error err)
{
    char *end = NULL;
    uint32_t shift = 0;
    errno = 0;
    uint64_t value = text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
    if (!end || !number_suffix(end, &shift))
        return error_set(err, BATON_EINVAL,
                         "%s: \"%s\" is not a whole number (such as 4096, 96K, 2M or 1G)", what,
                         text);
    if (errno == ERANGE || (shift && value > UINT64_MAX >> shift))
        return error_set(err, BATON_EINVAL, "%s: %s is too large", what, text);
    value <<= shift;
    if (value < min)
        return error_set(err, BATON_EINVAL, "%s: %s is too small, the least is %" PRIu64, what,
                         text, min);
    if (value > max)
        return error_set(err, BATON_EINVAL, "%s: %s is too large, the most is %" PRIu64, what,
                         text, max);
    *out = value;
    return BATON_OK;
}

static int option_number(const struct option *option, const char *text, uint64_t *out,
                         struct error err)
{
    char what[OPTION_ITEM_BYTES];
    uint64_t max = option->max;
    if (!max)
        max = option->type == OPTION_U32 ? UINT32_MAX : UINT64_MAX;
    snprintf(what, sizeof(what), "--%s", option->name);
    return options_number(text, what, option->min, max, out, err);
}

static int option_real(const struct option *option, const char *text, double *out,
                       struct error err)
{
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || value < 0)
        return error_set(err, BATON_EINVAL, "--%s: \"%s\" is not a number from 0 on",
                         option->name, text);
    *out = value;
    return BATON_OK;
}

static uint32_t choices_split(const char *choices, char names[][OPTION_ITEM_BYTES])
{
    uint32_t count = 0;
    while (*choices && count < OPTION_ITEMS_MAX) {
        size_t length = strcspn(choices, "|");
        BATON_ASSERT(length < OPTION_ITEM_BYTES);
        memcpy(names[count], choices, length);
        names[count++][length] = '\0';
        choices += length + (choices[length] == '|');
    }
    return count;
}

static int choice_check(const struct option *option, const char *text, struct error err)
{
    char names[OPTION_ITEMS_MAX][OPTION_ITEM_BYTES];
    const char *pointers[OPTION_ITEMS_MAX];
    if (!option->choices)
        return BATON_OK;
    uint32_t count = choices_split(option->choices, names);
    for (uint32_t i = 0; i < count; i++) {
        pointers[i] = names[i];
        if (strcmp(names[i], text) == 0)
            return BATON_OK;
    }
    const char *near = options_suggest(text, pointers, count);
    return error_set(err, BATON_EINVAL, "--%s: \"%s\" is not one of %s%s%s%s", option->name,
                     text, option->choices, near ? "; did you mean " : "", near ? near : "",
                     near ? "?" : "");
}

static int option_bool(const struct option *option, const char *text, bool *out,
                       struct error err)
{
    if (strcmp(text, "true") == 0 || strcmp(text, "1") == 0 || strcmp(text, "yes") == 0)
        *out = true;
    else if (strcmp(text, "false") == 0 || strcmp(text, "0") == 0 || strcmp(text, "no") == 0)
        *out = false;
    else
        return error_set(err, BATON_EINVAL, "--%s: \"%s\" is neither true nor false",
                         option->name, text);
    return BATON_OK;
}

static int option_strings_add(const struct option *option, const char *item,
                              struct option_strings *list, struct error err)
{
    int rc = choice_check(option, item, err);
    if (rc)
        return rc;
    memcpy(list->items[list->count++], item, strlen(item) + 1);
    return BATON_OK;
}

static int option_numbers_add(const struct option *option, const char *item,
                              struct option_numbers *list, struct error err)
{
    int rc = option_number(option, item, &list->items[list->count], err);
    if (rc)
        return rc;
    list->count++;
    return BATON_OK;
}

/* A new list replaces the old one: --backend shm --backend tcp means tcp. */
static int option_list(const struct option *option, const char *text, void *variable,
                       struct error err)
{
    struct option_strings strings = {0};
    struct option_numbers numbers = {0};
    for (uint32_t count = 0;; count++) {
        char item[OPTION_ITEM_BYTES];
        size_t length = strcspn(text, ",");
        if (count == OPTION_ITEMS_MAX)
            return error_set(err, BATON_EINVAL, "--%s: more than %d values", option->name,
                             OPTION_ITEMS_MAX);
        if (!length || length >= sizeof(item))
            return error_set(err, BATON_EINVAL, "--%s: value %u of the list is %s",
                             option->name, count + 1, length ? "too long" : "empty");
        memcpy(item, text, length);
        item[length] = '\0';
        int rc = option->type == OPTION_STRINGS
                     ? option_strings_add(option, item, &strings, err)
                     : option_numbers_add(option, item, &numbers, err);
        if (rc)
            return rc;
        if (!text[length])
            break;
        text += length + 1;
    }
    if (option->type == OPTION_STRINGS)
        memcpy(variable, &strings, sizeof(strings));
    else
        memcpy(variable, &numbers, sizeof(numbers));
    return BATON_OK;
}

static int option_repeat(const struct option *option, const char *text,
                         struct option_repeated *uses, struct error err)
{
    int rc = choice_check(option, text, err);
    if (rc)
        return rc;
    if (!*text)
        return error_set(err, BATON_EINVAL, "--%s: the value is empty", option->name);
    if (uses->count == OPTION_REPEATED_MAX)
        return error_set(err, BATON_EINVAL, "--%s: more than %d of them", option->name,
                         OPTION_REPEATED_MAX);
    uses->items[uses->count++] = (struct option_use){.value = text};
    return BATON_OK;
}

static int option_set(const struct option *option, const char *text, void *values,
                      struct error err)
{
    void *variable = (char *)values + option->offset;
    uint64_t number = 0;
    int rc = BATON_OK;
    switch (option->type) {
    case OPTION_BOOL: return option_bool(option, text, variable, err);
    case OPTION_STRINGS:
    case OPTION_NUMBERS: return option_list(option, text, variable, err);
    case OPTION_STRING:
        rc = choice_check(option, text, err);
        if (!rc)
            *(const char **)variable = text;
        return rc;
    case OPTION_U32:
        rc = option_number(option, text, &number, err);
        if (!rc)
            *(uint32_t *)variable = (uint32_t)number;
        return rc;
    case OPTION_U64:
        rc = option_number(option, text, &number, err);
        if (!rc)
            *(uint64_t *)variable = number;
        return rc;
    case OPTION_REAL: return option_real(option, text, variable, err);
    case OPTION_REPEATED: return option_repeat(option, text, variable, err);
    }
    return rc;
}

static size_t option_bytes(const struct option *option)
{
    switch (option->type) {
    case OPTION_BOOL: return sizeof(bool);
    case OPTION_U32: return sizeof(uint32_t);
    case OPTION_U64: return sizeof(uint64_t);
    case OPTION_REAL: return sizeof(double);
    case OPTION_STRING: return sizeof(const char *);
    case OPTION_STRINGS: return sizeof(struct option_strings);
    case OPTION_NUMBERS: return sizeof(struct option_numbers);
    case OPTION_REPEATED: return sizeof(struct option_repeated);
    }
    return 0;
}

static void defaults_set(const struct command *command, void *values)
{
    for (uint32_t i = 0; i < command->option_count; i++) {
        const struct option *option = &command->options[i];
        memset((char *)values + option->offset, 0, option_bytes(option));
        BATON_ASSERT(!option->initial ||
                     option_set(option, option->initial, values, ERROR_NONE) == BATON_OK);
    }
}

/* ---- the command line -------------------------------------------------------------------- */

static int option_unknown(const struct command *command, const char *name, struct error err)
{
    const char *names[OPTION_ITEMS_MAX + 1];
    uint32_t count = 0;
    for (uint32_t i = 0; i < command->option_count && count < OPTION_ITEMS_MAX; i++)
        if (!(command->options[i].flags & OPTION_HIDDEN))
            names[count++] = command->options[i].name;
    names[count++] = "help";
    const char *near = options_suggest(name, names, count);
    if (near)
        return error_set(err, BATON_EINVAL, "unknown option --%s; did you mean --%s?", name,
                         near);
    return error_set(err, BATON_EINVAL, "unknown option --%s (--help lists those of \"%s\")",
                     name, command->name);
}

static bool option_is_called(const struct option *option, const char *name)
{
    char names[OPTION_ITEMS_MAX][OPTION_ITEM_BYTES];
    if (strcmp(option->name, name) == 0)
        return true;
    uint32_t count = option->aliases ? choices_split(option->aliases, names) : 0;
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}

static void option_name(const char *word, char name[OPTION_ITEM_BYTES])
{
    size_t length = strcspn(word + 2, "=");
    snprintf(name, OPTION_ITEM_BYTES, "%.*s", (int)(length < 60 ? length : 60), word + 2);
}

const struct option *options_find(const struct command *command, const char *word)
{
    char name[OPTION_ITEM_BYTES];
    if (strncmp(word, "--", 2) != 0)
        return NULL;
    option_name(word, name);
    for (uint32_t i = 0; i < command->option_count; i++)
        if (option_is_called(&command->options[i], name))
            return &command->options[i];
    return NULL;
}

/* One option at argv[*index]; moves *index to the last word that was used. */
/* The word after the value of a repeated option, where there may be one and it is no option. */
static void second_take(const struct option *option, int argc, char **argv, int *index,
                        void *values)
{
    struct option_repeated *uses = (void *)((char *)values + option->offset);
    if (option->second && *index + 1 < argc && argv[*index + 1][0] != '-')
        uses->items[uses->count - 1].second = argv[++*index];
}

static int value_take(const struct option *option, int argc, char **argv, int *index,
                      void *values, struct error err)
{
    const char *equals = strchr(argv[*index], '=');
    if (equals)
        return option_set(option, equals + 1, values, err);
    if (option->type == OPTION_BOOL)
        return option_set(option, "true", values, err);
    if (*index + 1 >= argc || strncmp(argv[*index + 1], "--", 2) == 0)
        return error_set(err, BATON_EINVAL, "option --%s needs a value: --%s %s", option->name,
                         option->name, option->value ? option->value : "VALUE");
    return option_set(option, argv[++*index], values, err);
}

static int option_take(const struct command *command, int argc, char **argv, int *index,
                       void *values, uint64_t *given, struct error err)
{
    const struct option *option = options_find(command, argv[*index]);
    if (!option) {
        char name[OPTION_ITEM_BYTES];
        option_name(argv[*index], name);
        return option_unknown(command, name, err);
    }
    *given |= 1ull << (option - command->options);
    int rc = value_take(option, argc, argv, index, values, err);
    if (!rc && option->type == OPTION_REPEATED)
        second_take(option, argc, argv, index, values);
    return rc;
}

static int operand_take(const struct command *command, const char *word,
                        struct option_operands *operands, struct error err)
{
    if (!command->operands)
        return error_set(err, BATON_EINVAL, "\"%s\" is one too many: \"%s\" takes only options",
                         word, command->name);
    if (operands->count == command->operand_max)
        return error_set(err, BATON_EINVAL, "\"%s\" is one too many: \"%s\" takes %s", word,
                         command->name, command->operands);
    operands->items[operands->count++] = word;
    return BATON_OK;
}

static int complete_check(const struct command *command, uint64_t given,
                          const struct option_operands *operands, struct error err)
{
    for (uint32_t i = 0; i < command->option_count; i++) {
        const struct option *option = &command->options[i];
        if ((option->flags & OPTION_REQUIRED) && !(given >> i & 1))
            return error_set(err, BATON_EINVAL, "option --%s %s is missing: %s", option->name,
                             option->value ? option->value : "", option->help);
    }
    if (command->operands && operands->count < command->operand_min)
        return error_set(err, BATON_EINVAL, "%s is missing", command->operands);
    return BATON_OK;
}

int options_parse(const struct command *command, int argc, char **argv, void *values,
                  struct option_operands *operands, struct error err)
{
    uint64_t given = 0;
    bool only_operands = false;
    BATON_ASSERT(command->option_count <= 64);
    BATON_ASSERT(!command->operands ||
                 (operands && command->operand_max <= OPTION_OPERANDS_MAX));
    if (operands)
        operands->count = 0;
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return OPTIONS_HELP;
    defaults_set(command, values);
    for (int i = 0; i < argc; i++) {
        int rc;
        if (!only_operands && strcmp(argv[i], "--") == 0) {
            only_operands = true;
            continue;
        }
        if (!only_operands && strncmp(argv[i], "--", 2) == 0)
            rc = option_take(command, argc, argv, &i, values, &given, err);
        else if (!only_operands && argv[i][0] == '-' && argv[i][1])
            rc = error_set(err, BATON_EINVAL,
                           "unknown option %s: options begin with two dashes", argv[i]);
        else
            rc = operand_take(command, argv[i], operands, err);
        if (rc)
            return rc;
    }
    return complete_check(command, given, operands, err);
}

/* ---- help -------------------------------------------------------------------------------- */

/* Words wrapped at HELP_COLUMNS; an empty line in the text stays one, and a line that begins
 * with two spaces (an example) is printed as it is. */
static void help_paragraphs(const char *text, int indent, FILE *out)
{
    int column = 0;
    while (*text) {
        if (column == 0 && strncmp(text, "  ", 2) == 0) {
            size_t length = strcspn(text, "\n");
            fprintf(out, "%*s%.*s\n", indent, "", (int)length, text);
            text += length + (text[length] == '\n');
            continue;
        }
        size_t length = strcspn(text, " \n");
        if (column && column + 1 + (int)length > HELP_COLUMNS) {
            fputc('\n', out);
            column = 0;
        }
        if (length) {
            int space = column ? 1 : indent;
            fprintf(out, "%*s%.*s", space, "", (int)length, text);
            column += space + (int)length;
        }
        text += length;
        if (text[0] == '\n' && (text[1] == '\n' || strncmp(text + 1, "  ", 2) == 0)) {
            if (column)
                fputc('\n', out);
            if (text[1] == '\n')
                fputc('\n', out);
            column = 0;
            text += text[1] == '\n' ? 2 : 1;
        } else if (*text) {
            text++;
        }
    }
    if (column)
        fputc('\n', out);
}

/* Appends " word a, word b" for "a|b"; returns how much there is now. */
static int aliases_print(const char *aliases, char *text, int used, size_t size)
{
    char names[OPTION_ITEMS_MAX][OPTION_ITEM_BYTES];
    uint32_t count = choices_split(aliases, names);
    for (uint32_t i = 0; i < count && used > 0 && (size_t)used < size; i++)
        used += snprintf(text + used, size - (size_t)used, "%s--%s%s", i ? ", " : " Also ",
                         names[i], i + 1 == count ? "." : "");
    return used;
}

/* "the help. One of: a|b. Default: x. Also --y." */
static void option_sentence(const struct option *option, char *text, size_t size)
{
    int used = snprintf(text, size, "%s.", option->help);
    if (option->choices && used > 0 && (size_t)used < size)
        used += snprintf(text + used, size - (size_t)used, " One of: %s.", option->choices);
    if (option->initial && used > 0 && (size_t)used < size)
        used += snprintf(text + used, size - (size_t)used, " Default: %s.", option->initial);
    if (option->aliases)
        used = aliases_print(option->aliases, text, used, size);
    if (option->type == OPTION_REPEATED && used > 0 && (size_t)used < size)
        used += snprintf(text + used, size - (size_t)used, " May be given several times.");
    if ((option->flags & OPTION_REQUIRED) && used > 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, " Required.");
}

void options_help(const struct command *command, const char *program, FILE *out)
{
    char sentence[1024];
    fprintf(out, "usage: %s %s%s%s%s\n\n", program, command->name,
            command->option_count ? " [OPTION]..." : "", command->operands ? " " : "",
            command->operands ? command->operands : "");
    help_paragraphs(command->text ? command->text : command->summary, 0, out);
    fputs("\noptions:\n", out);
    for (uint32_t i = 0; i < command->option_count; i++) {
        const struct option *option = &command->options[i];
        if (option->flags & OPTION_HIDDEN)
            continue;
        fprintf(out, "  --%s%s%s%s%s%s\n", option->name, option->value ? " " : "",
                option->value ? option->value : "", option->second ? " [" : "",
                option->second ? option->second : "", option->second ? "]" : "");
        option_sentence(option, sentence, sizeof(sentence));
        help_paragraphs(sentence, HELP_INDENT, out);
    }
    fputs("  --help\n", out);
    help_paragraphs("This text.", HELP_INDENT, out);
}

/* ---- man page ---------------------------------------------------------------------------- */

void options_man_text(const char *text, FILE *out)
{
    bool line_start = true;
    for (; *text; text++) {
        if (line_start && (*text == '.' || *text == '\''))
            fputs("\\&", out);
        if (*text == '\\')
            fputs("\\e", out);
        else if (*text == '-')
            fputs("\\-", out);
        else
            fputc(*text, out);
        if (*text == ',' && text[1] > ' ')
            fputs("\\:", out); /* a long list may be broken here */
        line_start = *text == '\n';
    }
}

/* Paragraphs become .PP, lines of an example stay lines. */
static void man_paragraphs(const char *text, FILE *out)
{
    bool example = false;
    while (*text) {
        char line[512];
        size_t length = strcspn(text, "\n");
        bool is_example = strncmp(text, "  ", 2) == 0;
        snprintf(line, sizeof(line), "%.*s", (int)length, text);
        if (is_example != example)
            fputs(is_example ? ".RS 4\n.nf\n" : ".fi\n.RE\n", out);
        example = is_example;
        if (!length)
            fputs(".PP\n", out);
        else
            options_man_text(is_example ? line + 2 : line, out);
        if (length)
            fputc('\n', out);
        text += length + (text[length] == '\n');
    }
    if (example)
        fputs(".fi\n.RE\n", out);
}

void options_man(const struct command *command, const char *program, FILE *out)
{
    char sentence[1024];
    fprintf(out, ".SS \"%s %s%s%s\"\n", program, command->name, command->operands ? " " : "",
            command->operands ? command->operands : "");
    man_paragraphs(command->text ? command->text : command->summary, out);
    for (uint32_t i = 0; i < command->option_count; i++) {
        const struct option *option = &command->options[i];
        if (option->flags & OPTION_HIDDEN)
            continue;
        fputs(".TP\n.B \\-\\-", out);
        options_man_text(option->name, out);
        if (option->value)
            fprintf(out, " \\fI%s\\fR", option->value);
        if (option->second)
            fprintf(out, " [\\fI%s\\fR]", option->second);
        fputc('\n', out);
        option_sentence(option, sentence, sizeof(sentence));
        options_man_text(sentence, out);
        fputc('\n', out);
    }
}
