/* SPDX-License-Identifier: Apache-2.0 */
/* Decode first: a request comes to a decode worker without a room, and the worker finds somebody to
 * compute its prompts.
 *
 *   decode  POST /prefill {"input_ids", "sampling_params" ...}  to a prefill worker
 *   prefill {"bootstrap_host", "bootstrap_port", "bootstrap_room"} at once, and starts
 *   decode  receives in that room, as if a router had named it
 *
 * A prefill worker that does not answer is passed over for the next one, once; then decode computes the
 * prompt itself, or without fallback the client gets what the last one said. Loop's thread only. */
#ifndef BATON_SERVER_REMOTE_PREFILL_H
#define BATON_SERVER_REMOTE_PREFILL_H

#include "reply.h"

/* Is there somebody, and are the prompts worth it? */
bool remote_prefill_wanted(const struct reply *reply);
/* Calls reply_continue when every prompt has a room, or is to do without. */
void remote_prefill_begin(struct reply *reply);
/* Nothing comes of the request: rooms that were found, or are still being asked for, are given up. */
void remote_prefill_cancel(struct reply *reply, const char *reason);

#endif
