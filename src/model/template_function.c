/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that a template can call by name: range, dict and namespace of jinja2, and
 * raise_exception and strftime_now of transformers. */
#include "template_builtin.h"
#include "template_print.h"
#include "template_run.h"
#include "template_string.h"

#define RANGE_MAX 100000 /* as in jinja2's sandbox */

static bool function_range(struct run *run, const struct call *call, struct value *out)
{
    int64_t start = 0, stop, step;
    bool one = !value_given(call->given[1]);
    if (!jinja_need_integer(run, call->given[0], 0, "range", one ? &stop : &start) ||
        (!one && !jinja_need_integer(run, call->given[1], 0, "range", &stop)) ||
        !jinja_need_integer(run, call->given[2], 1, "range", &step))
        return false;
    if (step == 0)
        return jinja_refuse(run, "range: the step is 0");
    struct range *range = jinja_alloc(run, 1, sizeof(*range));
    if (!range)
        return false;
    *range = (struct range){.start = start, .stop = stop, .step = step};
    uint64_t span =
        step > 0 ? (uint64_t)stop - (uint64_t)start : (uint64_t)start - (uint64_t)stop;
    uint64_t stride = step > 0 ? (uint64_t)step : -(uint64_t)step;
    bool empty = step > 0 ? start >= stop : start <= stop;
    uint64_t count = empty ? 0 : (span - 1) / stride + 1;
    if (count > RANGE_MAX)
        return jinja_refuse(run, "range: more than %d items", RANGE_MAX);
    range->count = (size_t)count;
    *out = (struct value){.type = VALUE_RANGE, .range = range};
    return true;
}

static bool function_dict(struct run *run, const struct call *call, struct value *out)
{
    return jinja_dict_new(run, VALUE_DICT, out) &&
           jinja_dict_update(run, out->dict, call->arguments);
}

static bool function_namespace(struct run *run, const struct call *call, struct value *out)
{
    return jinja_dict_new(run, VALUE_NAMESPACE, out) &&
           jinja_dict_update(run, out->dict, call->arguments);
}

/* The message is the template's, for the client; so it stands alone. */
static bool function_raise_exception(struct run *run, const struct call *call,
                                     struct value *out)
{
    struct value message;
    if (!jinja_to_string(run, call->given[0], &message))
        return false;
    *out = value_of(VALUE_NONE);
    run->code =
        error_set(run->err, BATON_EINVAL, "the chat template refuses the conversation: %.*s",
                  (int)(message.length < 2000 ? message.length : 2000), message.bytes);
    return false;
}

/* Of Python's strftime, what C's has not, or has otherwise: %f is microseconds, of which this
 * clock has none, and a time without a zone writes nothing for %z and %Z. */
static bool expand_format(struct run *run, struct text format, struct value *out)
{
    size_t mark = run->sink.length;
    for (size_t i = 0; i < format.length; i++) {
        char next = i + 1 < format.length ? format.bytes[i + 1] : '\0';
        bool percent = format.bytes[i] == '%';
        if (percent && next == 'f' && !jinja_write_text(run, "000000"))
            return false;
        if (percent && (next == 'f' || next == 'z' || next == 'Z')) {
            i++;
            continue;
        }
        if (!jinja_write(run, format.bytes + i, 1))
            return false;
        if (percent && next) {
            if (!jinja_write(run, &next, 1))
                return false;
            i++;
        }
    }
    return jinja_write(run, "", 1) && jinja_cut(run, mark, out);
}

static bool function_strftime_now(struct run *run, const struct call *call, struct value *out)
{
    struct text format;
    struct value expanded;
    struct tm parts;
    char text[1024];
    time_t now = run->limits.now ? run->limits.now : time(NULL);
    if (!jinja_need_string(run, call->given[0], "strftime_now", &format) ||
        !expand_format(run, format, &expanded))
        return false;
    if (format.length == 0) {
        *out = value_string("", 0);
        return true;
    }
    if (!localtime_r(&now, &parts))
        return jinja_refuse(run, "strftime_now: the time cannot be told");
    size_t mark = run->sink.length;
    size_t length = strftime(text, sizeof(text), expanded.bytes, &parts);
    if (length == 0)
        return jinja_refuse(run, "strftime_now: the format is too long or writes nothing");
    return jinja_write(run, text, length) && jinja_cut(run, mark, out);
}

static const struct builtin functions[] = {
    BUILTIN("range", function_range, 1, "start", "stop", "step"),
    BUILTIN_ANY("dict", function_dict),
    BUILTIN_ANY("namespace", function_namespace),
    BUILTIN("raise_exception", function_raise_exception, 1, "message"),
    BUILTIN("strftime_now", function_strftime_now, 1, "format"),
};
const struct builtin_table jinja_functions = BUILTIN_TABLE(functions);

const struct builtin *jinja_function_find(struct text name)
{
    return jinja_builtin_find(jinja_functions, name);
}

bool jinja_function_unsupported(struct text name)
{
    return jinja_text_is(name, "lipsum") || jinja_text_is(name, "cycler") ||
           jinja_text_is(name, "joiner");
}
