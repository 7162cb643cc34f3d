/* SPDX-License-Identifier: Apache-2.0 */
/* tokenizer.json files that must be refused, with a reason that names what is wrong; what special
 * and unknown tokens mean there; and the files that a folder has beside it. */
#include "test_tokenizer_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- files that are refused -------------------------------------------------------------- */

#define VOCAB "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2}"
#define MODEL(rest) "{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\"]}" rest "}"

static const struct {
    const char *text, *reason; /* NULL: it is fine */
} documents[] = {
    {MODEL(""), NULL},
    {"", "bad JSON"},
    {"[]", "no model"},
    {"{", "bad JSON"},
    {"{}", "no model"},
    {"{\"model\":{\"type\":\"WordPiece\",\"vocab\":{}}}", "only BPE"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "only BPE"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":[],\"merges\":[]}}", "vocab is not an object"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "not one"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4194304},\"merges\":[]}}", "not one"},
    {"{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":\"x\"},\"merges\":[]}}", "not one"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":{}}}", "not a list"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"ab\"]}}", "merge 0 is not two"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[[\"a\"]]}}", "merge 0 is not two"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a b\",\"b a\"]}}",
     "merge 1: its halves together"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"x b\"]}}", "first half is no token"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a x\"]}}", "second half is no"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[\"a \"]}}", "halves is empty"},
    {"{\"model\":{\"type\":\"BPE\"," VOCAB ",\"merges\":[],\"end_of_word_suffix\":\"</w>\"}}",
     "prefix or suffix"},
    {MODEL(",\"normalizer\":{\"type\":\"Lowercase\"}"), "normalizer of type \"Lowercase\""},
    {MODEL(",\"normalizer\":{\"type\":\"Sequence\"}"), "sequence without \"normalizers\""},
    {MODEL(",\"normalizer\":{\"type\":\"Replace\",\"content\":\"x\"}"), "neither String"},
    {MODEL(",\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"(\"},"
           "\"content\":\"x\"}"),
     "no end"},
    {MODEL(",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}"), "\"UnicodeScripts\" is not"},
    {MODEL(",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[a&&b]\"},"
           "\"behavior\":\"Isolated\"}"),
     "intersection"},
    {MODEL(",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"*\"},"
           "\"behavior\":\"Isolated\"}"),
     "bad pattern"},
    {MODEL(",\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},"
           "\"behavior\":\"Sideways\"}"),
     "Sideways"},
    {MODEL(",\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":"
           "\"ByteLevel\"},{\"type\":\"Digits\"}]}"),
     "after ByteLevel"},
    {MODEL(",\"pre_tokenizer\":{\"type\":\"Metaspace\"}"), "not a letter"},
    {MODEL(",\"decoder\":{\"type\":\"WordPiece\"}"), "decoder of type \"WordPiece\""},
    {MODEL(",\"decoder\":{\"type\":\"Strip\",\"content\":\"x\",\"start\":1,\"stop\":0}"),
     "strips more"},
    {MODEL(",\"decoder\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"_\"},"
           "\"content\":\"-\"}"),
     "something else than a space"},
    {MODEL(",\"added_tokens\":[{\"id\":9}]"), "added_tokens[0]"},
    {MODEL(",\"added_tokens\":[{\"id\":99999999,\"content\":\"x\"}]"), "added_tokens[0]"},
    {MODEL(",\"post_processor\":{\"type\":\"TemplateProcessing\"}"), "no template"},
    {MODEL(",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
           "{\"id\":\"<s>\"}}],\"special_tokens\":{}}"),
     "does not define"},
    {MODEL(",\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"a\",77],"
           "\"sep\":[\"b\",1]}"),
     "does not have"},
};

static void test_bad_files_are_refused_with_a_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(documents) / sizeof(documents[0]); i++) {
        struct tokenizer *tokenizer = NULL;
        char reason[512] = "";
        int rc = tokenizer_open_json(documents[i].text, strlen(documents[i].text), "file.json",
                                     &tokenizer, ERROR_BUFFER(reason));
        if (!documents[i].reason) {
            assert_int_equal(rc, 0);
            tokenizer_close(tokenizer);
            continue;
        }
        if (rc >= 0 || tokenizer)
            fail_msg("not refused: %s", documents[i].text);
        if (!strstr(reason, documents[i].reason) || !strstr(reason, "file.json"))
            fail_msg("%s: the reason was \"%s\"", documents[i].text, reason);
    }
}

/* A merge that makes a control token is left out; text cannot become it. */
static void test_merges_make_no_control_token(void **state)
{
    (void)state;
    const char *text =
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"<\":0,\"s\":1,\">\":2,\"<s\":3,"
        "\"<s>\":4},\"merges\":[\"< s\",\"<s >\"],\"ignore_merges\":true},"
        "\"added_tokens\":[{\"id\":4,\"content\":\"<s>\",\"special\":true}]}";
    struct tokenizer *tokenizer;
    assert_int_equal(
        tokenizer_open_json(text, strlen(text), "file.json", &tokenizer, ERROR_NONE), 0);
    test_encode_expect(tokenizer, "<s>", 3, 0, (uint32_t[]){3, 2}, 2, "plain");
    test_encode_expect(tokenizer, "<s>", 3, TOKENIZER_PARSE_SPECIAL, (uint32_t[]){4}, 1,
                       "parsed");
    tokenizer_close(tokenizer);
}

static void test_unknown_characters_are_fused_or_dropped(void **state)
{
    (void)state;
    static const struct {
        const char *rest;
        uint32_t ids[4];
        size_t count;
    } ways[] = {{",\"unk_token\":\"?\",\"fuse_unk\":true", {0, 3, 0}, 3},
                {",\"unk_token\":\"?\",\"fuse_unk\":false", {0, 3, 3, 0}, 4},
                {"", {0, 0}, 2}};
    for (size_t i = 0; i < 3; i++) {
        char text[256];
        struct tokenizer *tokenizer;
        snprintf(text, sizeof(text),
                 "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"?\":3},\"merges\":[]%s}}",
                 ways[i].rest);
        assert_int_equal(
            tokenizer_open_json(text, strlen(text), "file.json", &tokenizer, ERROR_NONE), 0);
        test_encode_expect(tokenizer, "axya", 4, 0, ways[i].ids, ways[i].count, ways[i].rest);
        tokenizer_close(tokenizer);
    }
}

static struct tokenizer *document_open(const char *text)
{
    struct tokenizer *tokenizer;
    char reason[512];
    if (tokenizer_open_json(text, strlen(text), "file.json", &tokenizer, ERROR_BUFFER(reason)))
        fail_msg("%s", reason);
    return tokenizer;
}

#define SPECIAL "\"added_tokens\":[{\"id\":9,\"content\":\"<s>\",\"special\":true}]"

/* The space at the beginning of a text, but not behind a special token. */
static void test_first_space_is_only_that_of_the_text(void **state)
{
    (void)state;
    struct tokenizer *tokenizer =
        document_open("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"_\":1},\"merges\":[]},"
                      "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"_\","
                      "\"prepend_scheme\":\"first\",\"split\":false}," SPECIAL "}");
    test_encode_expect(tokenizer, "a<s>a", 5, TOKENIZER_PARSE_SPECIAL, (uint32_t[]){1, 0, 9, 0},
                       4, "first");
    test_encode_expect(tokenizer, "<s>a", 4, TOKENIZER_PARSE_SPECIAL, (uint32_t[]){9, 0}, 2,
                       "behind a special token");
    tokenizer_close(tokenizer);
}

/* A token that is not spelled in letters that stand for bytes comes out of no text. */
static void test_misspelled_tokens_are_not_found(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = document_open(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"\u20ac\":0,\"\u00e2\":1},\"merges\":[],"
        "\"ignore_merges\":true},\"pre_tokenizer\":{\"type\":\"ByteLevel\"}}");
    test_encode_expect(tokenizer, "\xe2\x82\xac", 3, 0, (uint32_t[]){1}, 1, "euro");
    tokenizer_close(tokenizer);
}

/* What was appended before a pattern gave up is taken back. */
static void test_a_failed_encode_leaves_the_list(void **state)
{
    (void)state;
    char text[80] = "<s>", reason[256] = "";
    struct token_list list = {0};
    struct tokenizer *tokenizer = document_open(
        "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]},"
        "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+[bd]\"},"
        "\"behavior\":\"Isolated\"}," SPECIAL "}");
    memset(text + 3, 'a', 64);
    strcpy(text + 67, "c");
    assert_int_equal(token_list_append(&list, 5), 0);
    assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), TOKENIZER_PARSE_SPECIAL,
                                      &list, ERROR_BUFFER(reason)),
                     BATON_ELIMIT);
    assert_non_null(strstr(reason, "gave up"));
    assert_int_equal(list.count, 1);
    token_list_free(&list);
    tokenizer_close(tokenizer);
}

/* ---- folders ----------------------------------------------------------------------------- */

static void folder_write(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

#define FOLDER_JSON                                                                     \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"<s>\":1,\"</s>\":2,\"<e>\":3},"  \
    "\"merges\":[]},\"added_tokens\":[{\"id\":1,\"content\":\"<s>\",\"special\":true}," \
    "{\"id\":2,\"content\":\"</s>\",\"special\":true},{\"id\":3,\"content\":\"<e>\","   \
    "\"special\":true}]}"

static void test_folder_files_say_which_tokens_are_special(void **state)
{
    (void)state;
    char folder[] = "/tmp/baton-tokenizer-XXXXXX", reason[512] = "", path[256];
    struct tokenizer *tokenizer = NULL;
    size_t count;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(tokenizer_open_folder(folder, &tokenizer, ERROR_BUFFER(reason)),
                     BATON_ENOTFOUND);
    assert_non_null(strstr(reason, "tokenizer.json"));
    folder_write(folder, "tokenizer.json", FOLDER_JSON);
    folder_write(folder, "tokenizer_config.json",
                 "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":\"</s>\","
                 "\"add_bos_token\":true,\"add_eos_token\":false,"
                 "\"model_max_length\":1000000000000000019884624838656}");
    folder_write(folder, "generation_config.json", "{\"eos_token_id\":[3,2,99]}");
    if (tokenizer_open_folder(folder, &tokenizer, ERROR_BUFFER(reason)))
        fail_msg("%s", reason);
    assert_int_equal(tokenizer_bos(tokenizer), 1);
    assert_int_equal(tokenizer_eos(tokenizer), 2);
    const uint32_t *ends = tokenizer_ends(tokenizer, &count);
    assert_int_equal(count, 2);
    assert_int_equal(ends[0], 2);
    assert_int_equal(ends[1], 3);
    test_encode_expect(tokenizer, "a", 1, TOKENIZER_ADD_SPECIAL, (uint32_t[]){1, 0}, 2, "bos");
    tokenizer_close(tokenizer);

    /* What the post-processor adds is taken away again where the folder says so. */
    folder_write(folder, "tokenizer.json",
                 "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"<s>\":1},\"merges\":[]},"
                 "\"post_processor\":{\"type\":\"RobertaProcessing\",\"cls\":[\"<s>\",1],"
                 "\"sep\":[\"a\",0]}}");
    folder_write(folder, "tokenizer_config.json",
                 "{\"bos_token\":\"<s>\",\"add_bos_token\":false}");
    if (tokenizer_open_folder(folder, &tokenizer, ERROR_BUFFER(reason)))
        fail_msg("%s", reason);
    test_encode_expect(tokenizer, "a", 1, TOKENIZER_ADD_SPECIAL, (uint32_t[]){0, 0}, 2, "none");
    tokenizer_close(tokenizer);

    folder_write(folder, "generation_config.json", "{\"eos_token_id\":");
    assert_int_equal(tokenizer_open_folder(folder, &tokenizer, ERROR_BUFFER(reason)),
                     BATON_EINVAL);
    assert_non_null(strstr(reason, "generation_config.json"));
    static const char *const names[] = {"tokenizer.json", "tokenizer_config.json",
                                        "generation_config.json"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_files_are_refused_with_a_reason),
        cmocka_unit_test(test_merges_make_no_control_token),
        cmocka_unit_test(test_unknown_characters_are_fused_or_dropped),
        cmocka_unit_test(test_first_space_is_only_that_of_the_text),
        cmocka_unit_test(test_misspelled_tokens_are_not_found),
        cmocka_unit_test(test_a_failed_encode_leaves_the_list),
        cmocka_unit_test(test_folder_files_say_which_tokens_are_special),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
