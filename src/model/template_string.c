/* SPDX-License-Identifier: Apache-2.0 */
/* Letters by utf8proc's tables. Beyond one letter for one, the few expansions that are seen in
 * practice are known here; those of polytonic Greek are not, nor is the final sigma. */
#include "template_string.h"

#include "template_run.h"
#include "template_text.h"

#include <string.h>
#include <utf8proc.h>

bool jinja_need_string(struct run *run, struct value value, const char *what, struct text *out)
{
    if (value.type != VALUE_STRING)
        return jinja_refuse(run, "%s needs a string, not %s", what, jinja_type_name(value));
    *out = value_text(value);
    return true;
}

bool jinja_need_integer(struct run *run, struct value value, int64_t missing, const char *what,
                        int64_t *out)
{
    if (value.type == VALUE_MISSING)
        *out = missing;
    else if (value.type == VALUE_INTEGER)
        *out = value.integer;
    else if (value.type == VALUE_BOOLEAN)
        *out = value.boolean;
    else
        return jinja_refuse(run, "%s needs an integer, not %s", what, jinja_type_name(value));
    return true;
}

/* ---- letters ----------------------------------------------------------------------------- */

static bool write_character(struct run *run, int32_t character)
{
    char bytes[4];
    return jinja_write(run, bytes, jinja_text_encode(character, bytes));
}

/* Letters of which the large form is several letters. */
static const char *upper_expansion(int32_t character)
{
    static const struct {
        int32_t character;
        const char *upper;
    } expansions[] = {
        {0xdf, "SS"},    {0x149, "\u02bcN"}, {0x1f0, "J\u030c"}, {0x587, "\u0535\u0552"},
        {0xfb00, "FF"},  {0xfb01, "FI"},     {0xfb02, "FL"},     {0xfb03, "FFI"},
        {0xfb04, "FFL"}, {0xfb05, "ST"},     {0xfb06, "ST"},
    };
    for (size_t i = 0; i < sizeof(expansions) / sizeof(expansions[0]); i++)
        if (expansions[i].character == character)
            return expansions[i].upper;
    return NULL;
}

static bool write_upper(struct run *run, int32_t character)
{
    const char *expansion = character < 0x80 ? NULL : upper_expansion(character);
    if (expansion)
        return jinja_write(run, expansion, strlen(expansion));
    return write_character(run, utf8proc_toupper(character));
}

static bool write_lower(struct run *run, int32_t character)
{
    if (character == 0x130)
        return jinja_write_text(run, "i\u0307");
    return write_character(run, utf8proc_tolower(character));
}

/* The first letter of its expansion is large, the others are small: Ss. */
static bool write_title(struct run *run, int32_t character)
{
    const char *expansion = character < 0x80 ? NULL : upper_expansion(character);
    if (!expansion)
        return write_character(run, utf8proc_totitle(character));
    struct text text = {expansion, (uint32_t)strlen(expansion)};
    for (size_t i = 0, step; i < text.length; i += step) {
        int32_t letter = jinja_text_decode(text, i, &step);
        if (i && !(character == 0x149) ? !write_lower(run, letter)
                                       : !write_character(run, letter))
            return false;
    }
    return true;
}

static bool is_cased(int32_t character)
{
    utf8proc_category_t category = utf8proc_category(character);
    return category == UTF8PROC_CATEGORY_LU || category == UTF8PROC_CATEGORY_LL ||
           category == UTF8PROC_CATEGORY_LT;
}

bool jinja_string_case(struct run *run, struct text text, enum letter_case letters,
                       struct value *out)
{
    size_t mark = run->sink.length;
    bool inside = false; /* after a letter that makes the next one small */
    if (!jinja_charge(run, 16 * (size_t)text.length))
        return false;
    for (size_t i = 0, step; i < text.length; i += step) {
        int32_t character = jinja_text_decode(text, i, &step);
        bool title = (letters == CASE_TITLE || letters == CASE_CAPITAL) && !inside;
        if (letters == CASE_UPPER ? !write_upper(run, character)
            : title               ? !write_title(run, character)
                                  : !write_lower(run, character))
            return false;
        inside = letters == CASE_CAPITAL || is_cased(character);
    }
    return jinja_cut(run, mark, out);
}

bool jinja_ignore_case(struct run *run, struct value value, struct value *out)
{
    if (value.type == VALUE_STRING)
        return jinja_string_case(run, value_text(value), CASE_LOWER, out);
    *out = value;
    return true;
}

bool jinja_string_is_case(struct text text, enum letter_case letters)
{
    bool found = false;
    for (size_t i = 0, step; i < text.length; i += step) {
        int32_t character = jinja_text_decode(text, i, &step);
        if (!is_cased(character))
            continue;
        bool upper = utf8proc_category(character) == UTF8PROC_CATEGORY_LU;
        bool lower = utf8proc_category(character) == UTF8PROC_CATEGORY_LL;
        if (letters == CASE_UPPER ? !upper : !lower)
            return false;
        found = true;
    }
    return found;
}

/* ---- classes ----------------------------------------------------------------------------- */

static bool is_alpha(int32_t character)
{
    utf8proc_category_t category = utf8proc_category(character);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

static bool is_digit(int32_t character)
{
    return utf8proc_category(character) == UTF8PROC_CATEGORY_ND || character == 0xb2 ||
           character == 0xb3 || character == 0xb9 || character == 0x2070 ||
           (character >= 0x2074 && character <= 0x2079) ||
           (character >= 0x2080 && character <= 0x2089);
}

static bool is_numeric(int32_t character)
{
    utf8proc_category_t category = utf8proc_category(character);
    return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool jinja_is_word_character(int32_t character)
{
    return character == '_' || is_alpha(character) || is_numeric(character);
}

static bool is_class(int32_t character, enum letter_class class)
{
    switch (class) {
    case CLASS_ALPHA: return is_alpha(character);
    case CLASS_DIGIT: return is_digit(character);
    case CLASS_ALPHANUMERIC: return is_alpha(character) || is_numeric(character);
    case CLASS_SPACE: return jinja_is_space(character);
    case CLASS_ASCII: return character < 0x80;
    }
    return false;
}

bool jinja_string_is_class(struct text text, enum letter_class class)
{
    for (size_t i = 0, step; i < text.length; i += step)
        if (!is_class(jinja_text_decode(text, i, &step), class))
            return false;
    return text.length > 0 || class == CLASS_ASCII;
}

/* ---- replacing and padding --------------------------------------------------------------- */

/* '' is found before every character and at the end. */
static bool replace_nothing(struct run *run, struct text text, struct text new, int64_t most)
{
    size_t i = 0;
    for (; most != 0; most -= most > 0) {
        if (!jinja_charge(run, 0) || !jinja_write(run, new.bytes, new.length))
            return false;
        if (i == text.length)
            return true;
        size_t step = jinja_text_step(text, i);
        if (!jinja_write(run, text.bytes + i, step))
            return false;
        i += step;
    }
    return jinja_write(run, text.bytes + i, text.length - i);
}

bool jinja_string_replace(struct run *run, struct text text, struct text old, struct text new,
                          int64_t most, struct value *out)
{
    size_t mark = run->sink.length, from = 0;
    if (!jinja_charge(run, text.length))
        return false;
    if (old.length == 0)
        return replace_nothing(run, text, new, most) && jinja_cut(run, mark, out);
    for (; most != 0; most -= most > 0) {
        ssize_t found = jinja_text_find(text, old, from);
        if (found < 0)
            break;
        if (!jinja_charge(run, 0) ||
            !jinja_write(run, text.bytes + from, (size_t)found - from) ||
            !jinja_write(run, new.bytes, new.length))
            return false;
        from = (size_t)found + old.length;
    }
    return jinja_write(run, text.bytes + from, text.length - from) && jinja_cut(run, mark, out);
}

bool jinja_string_pad(struct run *run, struct text text, int64_t width, struct text fill,
                      char align, struct value *out)
{
    size_t mark = run->sink.length, length = jinja_text_count(text);
    size_t missing = width > 0 && (uint64_t)width > length ? (size_t)width - length : 0;
    /* Python's center puts the odd one to the left only if the width is odd too. */
    size_t middle = missing / 2 + (missing & (size_t)width & 1);
    size_t left = align == '>' ? missing : align == '^' ? middle : 0;
    if (jinja_text_count(fill) != 1)
        return jinja_refuse(run, "a text can be filled up only with one character");
    for (size_t i = 0; i < left; i++)
        if (!jinja_charge(run, 0) || !jinja_write(run, fill.bytes, fill.length))
            return false;
    if (!jinja_write(run, text.bytes, text.length))
        return false;
    for (size_t i = left; i < missing; i++)
        if (!jinja_charge(run, 0) || !jinja_write(run, fill.bytes, fill.length))
            return false;
    return jinja_cut(run, mark, out);
}
