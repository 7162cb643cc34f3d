/* SPDX-License-Identifier: Apache-2.0 */
/* What OpenAI's two endpoints have around their choices: the head, the usage at the end of a stream,
 * and what stands after the choices of a whole answer. */
#include "reply.h"

void reply_head_write(struct reply *reply, const char *object)
{
    struct json_writer *out = &reply->out;
    json_put_open(out, '{');
    json_put_key_text(out, "id", reply->id);
    json_put_key_text(out, "object", object);
    json_put_key_int(out, "created", (int64_t)reply->created_unix);
    json_put_key_text(out, "model", reply_model_name(reply));
}

void reply_usage_event(struct reply *reply, const char *object)
{
    struct json_writer *out = &reply->out;
    if (!reply->include_usage)
        return;
    json_put_raw(out, "data: ", 6);
    reply_head_write(reply, object);
    json_put_key(out, "choices");
    json_put_open(out, '[');
    json_put_close(out, ']');
    reply_usage_write(reply, NULL);
    json_put_close(out, '}');
    reply_event(reply);
}

void reply_tail_write(struct reply *reply)
{
    struct json_writer *out = &reply->out;
    reply_usage_write(reply, NULL);
    json_put_key(out, "metadata");
    json_put_open(out, '{');
    json_put_key_text(out, "weight_version", reply->server->model->weight_version);
    json_put_close(out, '}');
    json_put_close(out, '}');
}
