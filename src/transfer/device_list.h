/* SPDX-License-Identifier: Apache-2.0 */
/* The option ib_device: which RDMA devices a rank uses; and what a backend tells about them. */
#ifndef BATON_TRANSFER_DEVICE_LIST_H
#define BATON_TRANSFER_DEVICE_LIST_H

#include "base/error.h"

struct device_choice {
    char name[64];
    int port;      /* 0: the first that is active */
    int gid_index; /* -1: the best */
};

/* The devices of one rank, as rails in this order. Accepted:
 *
 *   mlx5_0                       one
 *   mlx5_0:2, mlx5_0:1:3         with its port, with its port and GID index
 *   mlx5_0,mlx5_1                several
 *   mlx5_0;mlx5_1,mlx5_2         per rank: the n-th part is rank n's
 *   {"0": "mlx5_0", "1": "..."}  the same by name, as SGLang has it
 *
 * An empty text is an empty list: the caller chooses. */
int device_list_parse(const char *text, uint32_t rank, struct device_choice *out, uint32_t max,
                      uint32_t *count, struct error err);

/* What backend_ops.describe fills and baton_device_list shows. The arrays are malloc'ed. */
struct baton_device_list {
    baton_port_info *ports;
    uint32_t port_count;
    baton_gid_info *gids; /* those of the first port, then those of the second ... */
    uint32_t gid_count;
    char problem[256]; /* why none of them would be used */
};

#endif
