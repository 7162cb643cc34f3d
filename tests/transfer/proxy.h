/* SPDX-License-Identifier: Apache-2.0 */
/* A bad network between two ranks: a TCP proxy on a thread of its own. A route that is registered
 * by hand points at it, so the link and its data streams pass through; the test can freeze either
 * direction (bytes are kept back) and cut all connections (what was kept back is lost). */
#ifndef BATON_TESTS_PROXY_H
#define BATON_TESTS_PROXY_H

#include <stdbool.h>
#include <stdint.h>

struct proxy;

struct proxy *proxy_open(uint16_t target_port);
uint16_t proxy_port(const struct proxy *proxy);
/* up: from the side that called the proxy (decode); down: towards it. */
void proxy_freeze(struct proxy *proxy, bool up, bool down);
void proxy_cut(struct proxy *proxy); /* returns when all connections are closed */
void proxy_refuse(struct proxy *proxy, bool refuse);   /* new ones are closed at once */
uint32_t proxy_connections(const struct proxy *proxy); /* that were let through, ever */
uint64_t proxy_held_bytes(const struct proxy *proxy);  /* kept back in frozen directions */
void proxy_close(struct proxy *proxy);

#endif
