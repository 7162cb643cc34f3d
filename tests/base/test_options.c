/* SPDX-License-Identifier: Apache-2.0 */
/* Command lines: every type, every way to get it wrong, and that help and man page come from the
 * same table. The sentences are compared, because they are what a person sees. */
#include "base/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct values {
    bool json;
    uint32_t pages;
    uint64_t bytes;
    const char *host;
    const char *layout;
    struct option_strings backends;
    struct option_numbers sizes;
    double ratio;
    struct option_repeated peers;
};

static const struct option options[] = {
    {.name = "json",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, json),
     .help = "JSON"},
    {.name = "pages",
     .type = OPTION_U32,
     .offset = offsetof(struct values, pages),
     .value = "N",
     .initial = "4K",
     .min = 2,
     .help = "Pages"},
    {.name = "bytes",
     .aliases = "memory|num-bytes",
     .type = OPTION_U64,
     .offset = offsetof(struct values, bytes),
     .value = "N",
     .max = 1ull << 40,
     .help = "Bytes"},
    {.name = "host",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, host),
     .value = "HOST",
     .initial = "127.0.0.1",
     .help = "Address"},
    {.name = "layout",
     .type = OPTION_STRING,
     .offset = offsetof(struct values, layout),
     .value = "ORDER",
     .initial = "per-layer",
     .choices = "per-layer|page-major",
     .help = "Order of the bytes"},
    {.name = "backend",
     .type = OPTION_STRINGS,
     .offset = offsetof(struct values, backends),
     .value = "B,..",
     .initial = "shm,tcp",
     .choices = "shm|cma|tcp",
     .help = "Backends"},
    {.name = "ratio",
     .type = OPTION_REAL,
     .offset = offsetof(struct values, ratio),
     .value = "X",
     .initial = "0.25",
     .help = "Ratio"},
    {.name = "sizes",
     .type = OPTION_NUMBERS,
     .offset = offsetof(struct values, sizes),
     .value = "N,..",
     .min = 1,
     .help = "Sizes"},
    {.name = "peer",
     .type = OPTION_REPEATED,
     .offset = offsetof(struct values, peers),
     .value = "URL",
     .second = "PORT",
     .help = "Peers"},
};
static const struct command command = {
    .name = "try",
    .summary = "try it",
    .text = "First paragraph.\n\nSecond.\n  baton try --json\nThird.",
    .operands = "MODEL",
    .operand_max = 2,
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

static char sentence[256];
static struct option_operands operands;

static int parse(struct values *values, const char *line)
{
    static char words[4096];
    char *argv[OPTION_REPEATED_MAX + 32];
    int argc = 0;
    snprintf(words, sizeof(words), "%s", line);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    sentence[0] = '\0';
    return options_parse(&command, argc, argv, values, &operands, ERROR_BUFFER(sentence));
}

static void refuses(const char *line, const char *expected)
{
    struct values values;
    assert_int_equal(parse(&values, line), BATON_EINVAL);
    assert_string_equal(sentence, expected);
}

static void test_defaults_are_parsed(void **state)
{
    struct values values;
    (void)state;
    memset(&values, 0xff, sizeof(values));
    assert_int_equal(parse(&values, ""), 0);
    assert_false(values.json);
    assert_int_equal(values.pages, 4096);
    assert_int_equal(values.bytes, 0);
    assert_string_equal(values.host, "127.0.0.1");
    assert_string_equal(values.layout, "per-layer");
    assert_int_equal(values.backends.count, 2);
    assert_string_equal(values.backends.items[1], "tcp");
    assert_int_equal(values.sizes.count, 0);
}

static void test_both_spellings_of_a_value(void **state)
{
    struct values values;
    (void)state;
    assert_int_equal(parse(&values, "--pages 7 --bytes=3G --host=a=b --json --sizes 1,2K,3m"),
                     0);
    assert_int_equal(values.pages, 7);
    assert_int_equal(values.bytes, 3ull << 30);
    assert_string_equal(values.host, "a=b");
    assert_true(values.json);
    assert_int_equal(values.sizes.count, 3);
    assert_int_equal(values.sizes.items[1], 2048);
    assert_int_equal(values.sizes.items[2], 3 << 20);
}

static void test_last_one_counts(void **state)
{
    struct values values;
    (void)state;
    assert_int_equal(parse(&values, "--backend shm,cma --backend tcp --json --json=false"), 0);
    assert_int_equal(values.backends.count, 1);
    assert_string_equal(values.backends.items[0], "tcp");
    assert_false(values.json);
}

static void test_aliases_are_the_option(void **state)
{
    struct values values;
    (void)state;
    assert_int_equal(parse(&values, "--memory 9K"), 0);
    assert_int_equal(values.bytes, 9216);
    assert_int_equal(parse(&values, "--bytes 8 --num-bytes=7"), 0);
    assert_int_equal(values.bytes, 7);
    refuses("--memory", "option --bytes needs a value: --bytes N");
    refuses("--memory|num-bytes 7",
            "unknown option --memory|num-bytes (--help lists those of \"try\")");
    refuses("--num-bytes 2048G", "--bytes: 2048G is too large, the most is 1099511627776");
}

static void test_numbers_with_a_fraction(void **state)
{
    static const struct {
        const char *line;
        double value;
    } cases[] = {{"", 0.25},
                 {"--ratio 1", 1},
                 {"--ratio=0.5", 0.5},
                 {"--ratio 1e-3", 1e-3},
                 {"--ratio .75", 0.75},
                 {"--ratio 0", 0}};
    struct values values;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(parse(&values, cases[i].line), 0);
        assert_true(values.ratio == cases[i].value);
    }
    assert_int_equal(parse(&values, "--ratio -1"), BATON_EINVAL);
    assert_int_equal(parse(&values, "--ratio much"), BATON_EINVAL);
    assert_int_equal(parse(&values, "--ratio 1x"), BATON_EINVAL);
    assert_int_equal(parse(&values, "--ratio="), BATON_EINVAL);
    assert_int_equal(parse(&values, "--ratio nan"), BATON_EINVAL);
    assert_int_equal(parse(&values, "--ratio inf"), BATON_EINVAL);
    assert_int_equal(parse(&values, "--ratio 1e999"), BATON_EINVAL);
}

static void test_operands_and_the_double_dash(void **state)
{
    struct values values;
    (void)state;
    assert_int_equal(parse(&values, "first --json -- --pages"), 0);
    assert_int_equal(operands.count, 2);
    assert_string_equal(operands.items[0], "first");
    assert_string_equal(operands.items[1], "--pages");
    assert_int_equal(values.pages, 4096);
    refuses("one two three", "\"three\" is one too many: \"try\" takes MODEL");
}

static void test_help_wins_over_mistakes(void **state)
{
    struct values values;
    (void)state;
    assert_int_equal(parse(&values, "--bogus --help"), OPTIONS_HELP);
    assert_int_equal(parse(&values, "-h"), OPTIONS_HELP);
    assert_int_equal(parse(&values, "-- --help"), 0);
}

static void test_mistakes_are_explained(void **state)
{
    (void)state;
    refuses("--page 7", "unknown option --page; did you mean --pages?");
    refuses("--bakcend shm", "unknown option --bakcend; did you mean --backend?");
    refuses("--quantum 7", "unknown option --quantum (--help lists those of \"try\")");
    refuses("-p 7", "unknown option -p: options begin with two dashes");
    refuses("--pages", "option --pages needs a value: --pages N");
    refuses("--pages --json", "option --pages needs a value: --pages N");
    refuses("--pages=", "--pages: \"\" is not a whole number (such as 4096, 96K, 2M or 1G)");
    refuses("--pages -7",
            "--pages: \"-7\" is not a whole number (such as 4096, 96K, 2M or 1G)");
    refuses("--pages 7x",
            "--pages: \"7x\" is not a whole number (such as 4096, 96K, 2M or 1G)");
    refuses("--pages 7KK",
            "--pages: \"7KK\" is not a whole number (such as 4096, 96K, 2M or 1G)");
    refuses("--pages 1", "--pages: 1 is too small, the least is 2");
    refuses("--pages 4G", "--pages: 4G is too large, the most is 4294967295");
    refuses("--bytes 2048G", "--bytes: 2048G is too large, the most is 1099511627776");
    refuses("--bytes 99999999999999999999", "--bytes: 99999999999999999999 is too large");
    refuses("--bytes 18446744073709551615K", "--bytes: 18446744073709551615K is too large");
    refuses("--json=maybe", "--json: \"maybe\" is neither true nor false");
    refuses("--layout page", "--layout: \"page\" is not one of per-layer|page-major; "
                             "did you mean page-major?");
    refuses("--backend shm,verbs", "--backend: \"verbs\" is not one of shm|cma|tcp");
    refuses("--backend shm,,tcp", "--backend: value 2 of the list is empty");
    refuses("--sizes 1,0", "--sizes: 0 is too small, the least is 1");
}

static void test_lists_and_words_have_a_limit(void **state)
{
    struct values values;
    char line[512] = "--sizes 1";
    (void)state;
    for (int i = 1; i < OPTION_ITEMS_MAX; i++)
        strcat(line, ",1");
    assert_int_equal(parse(&values, line), 0);
    assert_int_equal(values.sizes.count, OPTION_ITEMS_MAX);
    strcat(line, ",1");
    refuses(line, "--sizes: more than 32 values");
    memset(line, 'x', 200);
    memcpy(line, "--", 2);
    line[200] = '\0';
    assert_int_equal(parse(&values, line), BATON_EINVAL);
    memcpy(line, "--backend=", 10);
    refuses(line, "--backend: value 1 of the list is too long");
}

static void test_repeated_ones_add_up_with_an_optional_second_word(void **state)
{
    static struct values values;
    static char line[OPTION_REPEATED_MAX * 12];
    (void)state;
    assert_int_equal(parse(&values, "--json"), 0);
    assert_int_equal(values.peers.count, 0);
    assert_int_equal(parse(&values, "--peer a 1 --peer b --peer=c 3 --json --peer d"), 0);
    assert_int_equal(values.peers.count, 4);
    assert_string_equal(values.peers.items[0].value, "a");
    assert_string_equal(values.peers.items[0].second, "1");
    assert_string_equal(values.peers.items[1].value, "b");
    assert_null(values.peers.items[1].second);
    assert_string_equal(values.peers.items[2].value, "c");
    assert_string_equal(values.peers.items[2].second, "3");
    assert_null(values.peers.items[3].second);
    assert_true(values.json);
    refuses("--peer", "option --peer needs a value: --peer URL");
    refuses("--peer=", "--peer: the value is empty");
    for (int i = 0; i < OPTION_REPEATED_MAX; i++)
        strcat(line, "--peer=a ");
    strcat(line, "--peer=a");
    refuses(line, "--peer: more than 256 of them");
}

static void test_required_and_missing_operand(void **state)
{
    static const struct option needed[] = {{.name = "host",
                                            .type = OPTION_STRING,
                                            .offset = 0,
                                            .value = "HOST",
                                            .flags = OPTION_REQUIRED,
                                            .help = "Where to listen"}};
    static const struct command strict = {.name = "strict",
                                          .operands = "MODEL",
                                          .operand_min = 1,
                                          .operand_max = 1,
                                          .options = needed,
                                          .option_count = 1};
    const char *host = NULL;
    char *without[] = {"model"};
    char *with[] = {"--host", "here"};
    (void)state;
    struct error err = ERROR_BUFFER(sentence);
    assert_int_equal(options_parse(&strict, 1, without, &host, &operands, err), BATON_EINVAL);
    assert_string_equal(sentence, "option --host HOST is missing: Where to listen");
    assert_int_equal(options_parse(&strict, 2, with, &host, &operands, err), BATON_EINVAL);
    assert_string_equal(sentence, "MODEL is missing");
}

static char *captured(void (*print)(const struct command *, const char *, FILE *))
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    print(&command, "baton", out);
    fclose(out);
    return text;
}

static void test_help_says_everything_in_the_table(void **state)
{
    (void)state;
    char *text = captured(options_help);
    assert_non_null(strstr(text, "usage: baton try [OPTION]... MODEL\n"));
    assert_non_null(strstr(text, "First paragraph.\n\nSecond.\n  baton try --json\nThird.\n"));
    assert_non_null(strstr(text, "  --pages N\n        Pages. Default: 4K.\n"));
    assert_non_null(
        strstr(text, "  --peer URL [PORT]\n        Peers. May be given several times.\n"));
    assert_non_null(strstr(text, "One of: shm|cma|tcp. Default: shm,tcp."));
    assert_non_null(strstr(text, "Bytes. Also --memory, --num-bytes."));
    for (uint32_t i = 0; i < command.option_count; i++)
        assert_non_null(strstr(text, options[i].name));
    free(text);
}

static void test_man_page_escapes_dashes(void **state)
{
    (void)state;
    char *text = captured(options_man);
    assert_non_null(strstr(text, ".SS \"baton try MODEL\"\n"));
    assert_non_null(strstr(text, ".B \\-\\-pages \\fIN\\fR\nPages. Default: 4K.\n"));
    assert_non_null(strstr(text, "baton try \\-\\-json\n"));
    free(text);
}

static void test_man_text_cannot_become_a_request(void **state)
{
    char *text = NULL;
    size_t size = 0;
    (void)state;
    FILE *out = open_memstream(&text, &size);
    options_man_text(".so a\n'b \\n 1,2, 3", out);
    fclose(out);
    assert_string_equal(text, "\\&.so a\n\\&'b \\en 1,\\:2, 3");
    free(text);
}

static void test_words_find_their_option(void **state)
{
    (void)state;
    assert_ptr_equal(options_find(&command, "--pages"), &options[1]);
    assert_ptr_equal(options_find(&command, "--pages=7"), &options[1]);
    assert_null(options_find(&command, "--page"));
    assert_null(options_find(&command, "pages"));
    assert_null(options_find(&command, ""));
}

static void test_suggestions_are_near_or_absent(void **state)
{
    static const char *const names[] = {"bench", "info", "demo", "bootstrap"};
    (void)state;
    assert_string_equal(options_suggest("ifno", names, 4), "info");
    assert_string_equal(options_suggest("boot", names, 4), "bootstrap");
    assert_string_equal(options_suggest("bensh", names, 4), "bench");
    assert_null(options_suggest("serve", names, 4));
    assert_null(options_suggest("", names, 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_parsed),
        cmocka_unit_test(test_both_spellings_of_a_value),
        cmocka_unit_test(test_last_one_counts),
        cmocka_unit_test(test_aliases_are_the_option),
        cmocka_unit_test(test_numbers_with_a_fraction),
        cmocka_unit_test(test_operands_and_the_double_dash),
        cmocka_unit_test(test_help_wins_over_mistakes),
        cmocka_unit_test(test_mistakes_are_explained),
        cmocka_unit_test(test_lists_and_words_have_a_limit),
        cmocka_unit_test(test_repeated_ones_add_up_with_an_optional_second_word),
        cmocka_unit_test(test_required_and_missing_operand),
        cmocka_unit_test(test_help_says_everything_in_the_table),
        cmocka_unit_test(test_man_page_escapes_dashes),
        cmocka_unit_test(test_man_text_cannot_become_a_request),
        cmocka_unit_test(test_words_find_their_option),
        cmocka_unit_test(test_suggestions_are_near_or_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
