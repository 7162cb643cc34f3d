/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA part of `baton info`: devices, ports, GIDs, and which of them become rails. */
#ifndef BATON_CLI_INFO_DEVICES_H
#define BATON_CLI_INFO_DEVICES_H

#include "baton.h"

#include <jansson.h>

/* ib_device and rank as a manager would get them. */
void devices_print(const char *ib_device, uint32_t rank);
json_t *devices_json(const char *ib_device,
                     uint32_t rank); /* {"devices": [...], "problem": ..} */

#endif
