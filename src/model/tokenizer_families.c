/* SPDX-License-Identifier: Apache-2.0 */
/* The table. Patterns are those of the families' tokenizer.json files; they are data that has to be
 * exact, so each is tested with real vocabularies against ids made by Hugging Face's library. */
#include "tokenizer_families.h"

#include <string.h>

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES_AND_SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

/* Llama 3's pattern; of it and its relatives only the digits differ. */
#define PATTERN_LLAMA3(digits)                            \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits \
                 "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES

/* Words that begin with a capital, o200k's way. */
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define PATTERN_O200K(contractions, digits)                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" contractions "|[^\\r\\n\\p{L}\\p{N}]?" UPPER \
    "+" LOWER "*" contractions "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES_AND_SPACES

#define CHINESE_AND_KOREAN "[\\x{4e00}-\\x{9fa5}\\x{800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define WIDE_PUNCTUATION \
    "!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}"

/* The letters of scripts with two cases, as DeepSeek's first models knew them. */
#define CASED_LETTERS                                                                \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"   \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}"            \
    "\\x{37b}-\\x{37d}\\x{37f}\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}"    \
    "\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-\\x{52f}\\x{531}-\\x{556}"           \
    "\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}\\x{1c90}-\\x{1cba}"   \
    "\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-\\x{1d9a}"   \
    "\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}"   \
    "\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}"              \
    "\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}"             \
    "\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}"   \
    "\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}"    \
    "\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}"     \
    "\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}\\x{214e}"    \
    "\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"    \
    "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}"    \
    "\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}"   \
    "\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}" \
    "\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}"                \
    "\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"

static const struct tokenizer_family families[] = {
    {
        .names = "gpt-2|phi-2",
        .patterns = {PATTERN_GPT2},
    },
    {
        .names = "mpt|olmo",
        .patterns = {PATTERN_GPT2},
        .composes = true,
    },
    {
        .names = "llama-bpe|llama3|llama-v3",
        .patterns = {PATTERN_LLAMA3("\\p{N}{1,3}")},
        .whole_piece_first = true,
        .adds_bos = true,
    },
    {
        .names = "qwen2",
        .patterns = {PATTERN_LLAMA3("\\p{N}")},
        .composes = true,
    },
    {
        .names = "deepseek-r1-qwen",
        .patterns = {PATTERN_LLAMA3("\\p{N}")},
    },
    {
        .names = "qwen35",
        .patterns = {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                                  "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES},
        .composes = true,
    },
    {
        .names = "smollm|starcoder|refact",
        .patterns = {"\\p{N}", PATTERN_GPT2},
    },
    {
        .names = "command-r",
        .patterns = {"\\p{N}", PATTERN_GPT2},
        .composes = true,
    },
    {
        .names = "tekken",
        .patterns = {PATTERN_O200K("", "\\p{N}")},
        .whole_piece_first = true,
        .adds_bos = true,
    },
    {
        .names = "gpt-4o|llama4",
        .patterns = {PATTERN_O200K(CONTRACTIONS "?", "\\p{N}{1,3}")},
    },
    {
        .names = "deepseek-llm",
        .patterns = {"[\\r\\n]", "\\s?[" CASED_LETTERS "]+", "\\s?[" WIDE_PUNCTUATION "]+",
                     "\\s+$", CHINESE_AND_KOREAN, "\\p{N}"},
    },
    {
        .names = "deepseek-coder",
        .patterns = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CHINESE_AND_KOREAN, "\\p{N}"},
    },
    {
        .names = "deepseek-v3",
        .patterns = {"\\p{N}{1,3}",
                     "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
                     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
                     "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
                     "| ?[\\p{P}\\p{S}]+[\\r\\n]*|" LINES_AND_SPACES},
    },
    {
        .names = "default|",
        .patterns = {"[\\p{P}\\$\\+<=>\\^~\\|]+", PATTERN_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"},
    },
};

static bool names_have(const char *names, const char *name, size_t length)
{
    for (;;) {
        size_t end = strcspn(names, "|");
        if (end == length && memcmp(names, name, length) == 0)
            return true;
        if (!names[end])
            return false;
        names += end + 1;
    }
}

const struct tokenizer_family *tokenizer_family_find(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        if (names_have(families[i].names, name, length))
            return &families[i];
    }
    return NULL;
}
