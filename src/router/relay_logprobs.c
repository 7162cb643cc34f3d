/* SPDX-License-Identifier: Apache-2.0 */
/* Log-probabilities of the prompt: prefill computes them, so they are in its answer to /generate, and the
 * client's answer is decode's, with empty lists. As SGLang's routers do, the lists are filled in for every
 * choice; those that decode has computed itself stay. Only whole answers; streams pass as they are. */
#include "relay.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static void lists_fill(json_t *target, const json_t *source)
{
    static const char *const names[] = {"input_token_logprobs", "input_top_logprobs",
                                        "input_token_ids_logprobs"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        json_t *list = json_object_get(source, names[i]);
        const json_t *empty = json_object_get(target, names[i]);
        if (json_is_array(list) && json_is_array(empty) && json_array_size(empty) == 0)
            json_object_set(target, names[i], list);
    }
}

static void choice_join(json_t *decode, const json_t *prefill)
{
    lists_fill(json_object_get(decode, "meta_info"), json_object_get(prefill, "meta_info"));
}

void answer_join_logprobs(struct relay *relay)
{
    struct leg *leg = &relay->decode;
    json_t *decode = json_loadb(leg->bytes ? leg->bytes : "", leg->length, 0, NULL);
    json_t *prefill = json_loadb(relay->prefill.bytes ? relay->prefill.bytes : "",
                                 relay->prefill.length, 0, NULL);
    if (json_is_array(decode) && json_is_array(prefill)) {
        for (size_t i = 0; i < json_array_size(decode); i++)
            choice_join(json_array_get(decode, i), json_array_get(prefill, i));
    } else if (json_is_object(decode) && json_is_object(prefill))
        choice_join(decode, prefill);
    char *text = decode && prefill ? json_dumps(decode, JSON_COMPACT) : NULL;
    if (text) {
        free(leg->bytes);
        leg->bytes = text;
        leg->length = strlen(text);
        leg->room = leg->length + 1;
    }
    json_decref(decode);
    json_decref(prefill);
}
