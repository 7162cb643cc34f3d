/* SPDX-License-Identifier: Apache-2.0 */
/* Pools that peers on this host can map, and the question which of a manager's bases lie in one. */
#ifndef BATON_TRANSFER_POOL_H
#define BATON_TRANSFER_POOL_H

#include <stdbool.h>
#include <stdint.h>

struct manager;

/* The memfds of the pools that the manager's bases lie in, each once, in the order of the bases. */
uint32_t pool_fds(struct manager *manager, int *fds, uint32_t max);

/* Which of pool_fds an address range lies in, and where; false when in none. */
bool pool_locate(struct manager *manager, uint64_t address, uint64_t bytes, uint32_t *index,
                 uint64_t *offset);

#endif
