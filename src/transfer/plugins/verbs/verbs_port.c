/* SPDX-License-Identifier: Apache-2.0 */
/* A manager's RDMA devices: which ports become rails, by which GID, and the registered memory.
 *
 * Memory is registered once per manager and port, when the manager is opened, and released when it
 * is closed: a peer's keys die with it. Bases that lie side by side (the layers of one pool) are one
 * registration.
 *
 * The key in REGISTER, little-endian:
 *
 *   u32 version | u32 ports | ports x (gid 16, u16 lid, u8 link layer, u8 mtu, name 24)
 *   u32 ranges  | ranges x (u64 address, u64 length) | ports x ranges x u32 remote key */
#include "verbs.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define KEY_VERSION 1u
#define KEY_PORT_BYTES 44

/* ---- GIDs ---- */

void verbs_gid_text(const union ibv_gid *gid, char *out, size_t size)
{
    char text[INET6_ADDRSTRLEN] = "?";
    inet_ntop(AF_INET6, gid->raw, text, sizeof(text));
    snprintf(out, size, "%s", text);
}

enum verbs_gid_kind verbs_gid_kind(const struct ibv_gid_entry *entry)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    bool local = entry->gid.raw[0] == 0xfe && (entry->gid.raw[1] & 0xc0) == 0x80;
    if (entry->gid_type == IBV_GID_TYPE_IB)
        return local ? VERBS_GID_IB_LOCAL : VERBS_GID_IB;
    if (entry->gid_type != IBV_GID_TYPE_ROCE_V2)
        return VERBS_GID_ROCE_V1;
    if (memcmp(entry->gid.raw, mapped, sizeof(mapped)) == 0)
        return VERBS_GID_IPV4;
    return local ? VERBS_GID_IPV6_LOCAL : VERBS_GID_IPV6;
}

static int port_choose_gid(struct verbs_port *port, struct error err)
{
    struct ibv_gid_entry entries[VERBS_GIDS_MAX];
    ssize_t count = ibv_query_gid_table(port->context, entries, VERBS_GIDS_MAX, 0);
    int best = 0, wanted = port->gid_index;
    if (count < 0)
        return verbs_host->error_set(err, BATON_ESYSTEM, "%s: cannot read the GID table: %s",
                                     port->name, strerror((int)-count));
    for (ssize_t i = 0; i < count; i++) {
        if ((int)entries[i].port_num != port->number)
            continue;
        int rank = (int)verbs_gid_kind(&entries[i]);
        bool named = wanted >= 0 && (int)entries[i].gid_index == wanted;
        if (named || (wanted < 0 && rank > best)) {
            best = named ? INT32_MAX : rank;
            port->gid_index = (int)entries[i].gid_index;
            port->gid = entries[i].gid;
        }
    }
    if (best)
        return BATON_OK;
    return wanted >= 0 ? verbs_host->error_set(err, BATON_EINVAL,
                                               "%s port %d has no GID with index %d; `baton "
                                               "info` lists them",
                                               port->name, port->number, wanted)
                       : verbs_host->error_set(err, BATON_EUNREACHABLE,
                                               "%s port %d has no GID: has its interface an "
                                               "address?",
                                               port->name, port->number);
}

const char *verbs_address_kind(const union ibv_gid *gid)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (memcmp(gid->raw, mapped, sizeof(mapped)) == 0)
        return "an IPv4";
    return gid->raw[0] == 0xfe && (gid->raw[1] & 0xc0) == 0x80 ? "a link-local" : "an IPv6";
}

bool verbs_ports_match(const struct verbs_port *mine, const struct verbs_peer_port *theirs)
{
    if (mine->attributes.link_layer != theirs->link_layer)
        return false;
    return theirs->link_layer != IBV_LINK_LAYER_ETHERNET ||
           strcmp(verbs_address_kind(&mine->gid), verbs_address_kind(&theirs->gid)) == 0;
}

/* ---- ports ---- */

const char *verbs_port_trouble(enum ibv_port_state state)
{
    switch (state) {
    case IBV_PORT_DOWN: return "down: is the cable in, is the interface up?";
    case IBV_PORT_INIT: return "not configured yet: is a subnet manager running?";
    case IBV_PORT_ARMED: return "armed, not active yet";
    default: return "not active";
    }
}

uint64_t verbs_port_speed(const struct ibv_port_attr *attributes)
{
    static const uint32_t lanes[] = {[1] = 1, [2] = 4, [4] = 8, [8] = 12, [16] = 2};
    static const uint32_t mbps[] = {[1] = 2500,   [2] = 5000,   [4] = 10000,  [8] = 10312,
                                    [16] = 14062, [32] = 25781, [64] = 53125, [128] = 106250};
    uint32_t width = attributes->active_width < 17 ? lanes[attributes->active_width] : 1;
    uint32_t speed = attributes->active_speed <= 128 ? mbps[attributes->active_speed] : 1;
    return (uint64_t)(width ? width : 1) * (speed ? speed : 1);
}

static int port_find_number(struct verbs_port *port, struct error err)
{
    int last = port->number ? port->number : port->device.phys_port_cnt;
    enum ibv_port_state seen = IBV_PORT_NOP;
    for (int number = port->number ? port->number : 1; number <= last; number++) {
        if (ibv_query_port(port->context, (uint8_t)number, &port->attributes) != 0)
            return verbs_host->error_set(err, BATON_EINVAL, "%s has no port %d", port->name,
                                         number);
        seen = port->attributes.state;
        if (seen == IBV_PORT_ACTIVE) {
            port->number = number;
            return BATON_OK;
        }
    }
    return verbs_host->error_set(err, BATON_EUNREACHABLE, "%s port %d is %s", port->name, last,
                                 verbs_port_trouble(seen));
}

static void port_close(struct verbs_port *port, uint32_t range_count)
{
    for (uint32_t i = 0; port->regions && i < range_count; i++)
        if (port->regions[i])
            ibv_dereg_mr(port->regions[i]);
    free(port->regions);
    if (port->pd)
        ibv_dealloc_pd(port->pd);
    if (port->context)
        ibv_close_device(port->context);
    *port = (struct verbs_port){0};
}

static int port_open(struct verbs_port *port, struct ibv_device *device,
                     const struct device_choice *choice, struct error err)
{
    *port = (struct verbs_port){.number = choice->port, .gid_index = choice->gid_index};
    snprintf(port->name, sizeof(port->name), "%s", ibv_get_device_name(device));
    port->context = ibv_open_device(device);
    if (!port->context)
        return verbs_host->error_set(err, BATON_ESYSTEM,
                                     "cannot open %s: %s (may this user open "
                                     "/dev/infiniband/uverbs*?)",
                                     port->name, strerror(errno));
    int code = BATON_OK;
    if (ibv_query_device(port->context, &port->device) != 0)
        code = verbs_host->error_set(err, BATON_ESYSTEM, "cannot query %s: %s", port->name,
                                     strerror(errno));
    if (code == BATON_OK)
        code = port_find_number(port, err);
    if (code == BATON_OK)
        code = port_choose_gid(port, err);
    if (code == BATON_OK && !(port->pd = ibv_alloc_pd(port->context)))
        code = verbs_host->error_set(err, BATON_ESYSTEM, "%s: no protection domain: %s",
                                     port->name, strerror(errno));
    if (code != BATON_OK)
        port_close(port, 0);
    return code;
}

/* ---- which ports ---- */

/* 1 where it cannot be asked: opening the port will say why. */
static int device_port_count(struct ibv_device *device)
{
    struct ibv_context *context = ibv_open_device(device);
    struct ibv_device_attr attributes = {.phys_port_cnt = 1};
    if (context && ibv_query_device(context, &attributes) != 0)
        attributes.phys_port_cnt = 1;
    if (context)
        ibv_close_device(context);
    return attributes.phys_port_cnt;
}

/* Keeps the port that was just opened behind the others if it is as fast as they are, alone if it
 * is faster. */
static void port_consider(struct verbs_manager *self)
{
    struct verbs_port *port = &self->ports[self->port_count];
    uint64_t speed = verbs_port_speed(&port->attributes);
    if (speed < self->fastest) {
        port_close(port, 0);
        return;
    }
    if (speed > self->fastest) {
        struct verbs_port faster = *port;
        for (uint32_t k = 0; k < self->port_count; k++)
            port_close(&self->ports[k], 0);
        self->ports[0] = faster;
        self->port_count = 0;
        self->fastest = speed;
    }
    self->port_count++;
}

/* Nothing was named: every port that is up and as fast as the fastest. */
static int ports_choose_fastest(struct verbs_manager *self, struct ibv_device **devices,
                                int count, struct error err)
{
    char why[VERBS_WHY_MAX] = "there is no RDMA device";
    for (int i = 0; i < count; i++) {
        int ports = device_port_count(devices[i]);
        for (int number = 1; number <= ports && self->port_count < VERBS_RAILS_MAX; number++) {
            struct device_choice choice = {.port = number, .gid_index = -1};
            struct verbs_port *port = &self->ports[self->port_count];
            if (port_open(port, devices[i], &choice, ERROR_BUFFER(why)) == BATON_OK)
                port_consider(self);
        }
    }
    return self->port_count ? BATON_OK
                            : verbs_host->error_set(err, BATON_EUNSUPPORTED, "%s", why);
}

static int ports_open_named(struct verbs_manager *self, struct ibv_device **devices, int count,
                            const struct device_choice *choices, uint32_t choice_count,
                            struct error err)
{
    for (uint32_t i = 0; i < choice_count; i++) {
        struct ibv_device *device = NULL;
        for (int k = 0; k < count; k++)
            if (strcmp(ibv_get_device_name(devices[k]), choices[i].name) == 0)
                device = devices[k];
        if (!device)
            return verbs_host->error_set(err, BATON_EINVAL,
                                         "ib_device: there is no '%s' here; `baton info` lists "
                                         "the devices",
                                         choices[i].name);
        int code = port_open(&self->ports[self->port_count], device, &choices[i], err);
        if (code != BATON_OK)
            return code;
        self->port_count++;
    }
    return BATON_OK;
}

int verbs_ports_open(struct verbs_manager *self, const char *ib_device, uint32_t rank,
                     struct error err)
{
    struct device_choice choices[VERBS_RAILS_MAX];
    uint32_t choice_count = 0;
    if (!ib_device || !ib_device[0])
        ib_device = getenv("BATON_IB_DEVICE");
    int code = verbs_host->device_list_parse(ib_device, rank, choices, VERBS_RAILS_MAX,
                                             &choice_count, err);
    if (code != BATON_OK)
        return code;
    self->named = choice_count > 0;
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    if (!devices)
        return verbs_host->error_set(err, BATON_EUNSUPPORTED, "no RDMA devices: %s",
                                     strerror(errno));
    code = choice_count ? ports_open_named(self, devices, count, choices, choice_count, err)
                        : ports_choose_fastest(self, devices, count, err);
    ibv_free_device_list(devices);
    return code;
}

void verbs_ports_close(struct verbs_manager *self)
{
    for (uint32_t i = 0; i < self->port_count; i++)
        port_close(&self->ports[i], self->range_count);
    self->port_count = 0;
}

/* ---- memory ---- */

static int range_compare(const void *left, const void *right)
{
    const struct verbs_range *a = left, *b = right;
    return a->address < b->address ? -1 : a->address > b->address;
}

/* All bases of all regions, sorted, with neighbours and overlaps joined. */
static int ranges_collect(struct verbs_manager *self, const struct manager *manager,
                          struct error err)
{
    uint32_t bases = 0, count = 0;
    for (uint32_t r = 0; r < manager->region_count; r++)
        bases += manager->regions[r].layout.base_count;
    struct verbs_range *ranges = calloc(bases ? bases : 1, sizeof(*ranges));
    if (!ranges)
        return verbs_host->error_set(err, BATON_ENOMEM, "out of memory for registrations");
    for (uint32_t r = 0; r < manager->region_count; r++) {
        const struct layout *layout = &manager->regions[r].layout;
        for (uint32_t b = 0; b < layout->base_count; b++)
            ranges[count++] =
                (struct verbs_range){layout->bases[b].address, layout->bases[b].bytes};
    }
    qsort(ranges, count, sizeof(*ranges), range_compare);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct verbs_range *last = kept ? &ranges[kept - 1] : NULL;
        if (last && ranges[i].address <= last->address + last->length) {
            uint64_t end = ranges[i].address + ranges[i].length;
            if (end > last->address + last->length)
                last->length = end - last->address;
        } else {
            ranges[kept++] = ranges[i];
        }
    }
    self->ranges = ranges;
    self->range_count = kept;
    return BATON_OK;
}

static int port_register(struct verbs_port *port, const struct verbs_manager *self,
                         struct error err)
{
    int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
    port->regions = calloc(self->range_count ? self->range_count : 1, sizeof(struct ibv_mr *));
    if (!port->regions)
        return verbs_host->error_set(err, BATON_ENOMEM, "out of memory for registrations");
    for (uint32_t i = 0; i < self->range_count; i++) {
        const struct verbs_range *range = &self->ranges[i];
        port->regions[i] = ibv_reg_mr(port->pd, (void *)(uintptr_t)range->address,
                                      (size_t)range->length, access);
        if (port->regions[i])
            continue;
        int failed = errno;
        struct rlimit limit = {0};
        getrlimit(RLIMIT_MEMLOCK, &limit);
        if (failed == ENOMEM && limit.rlim_cur != RLIM_INFINITY)
            return verbs_host->error_set(
                err, BATON_ENOMEM,
                "%s: cannot pin %llu bytes: the limit of locked memory is %llu (ulimit -l; "
                "LimitMEMLOCK=infinity in a service)",
                port->name, (unsigned long long)range->length,
                (unsigned long long)limit.rlim_cur);
        return verbs_host->error_set(err, BATON_ESYSTEM, "%s: cannot register %llu bytes: %s",
                                     port->name, (unsigned long long)range->length,
                                     strerror(failed));
    }
    return BATON_OK;
}

int verbs_open(struct manager *manager, void **state, struct error err)
{
    struct verbs_manager *self = calloc(1, sizeof(*self));
    if (!self)
        return verbs_host->error_set(err, BATON_ENOMEM, "out of memory for devices");
    int code = verbs_ports_open(self, manager->config.ib_device, manager->config.rank, err);
    if (code == BATON_OK)
        code = ranges_collect(self, manager, err);
    for (uint32_t i = 0; code == BATON_OK && i < self->port_count; i++)
        code = port_register(&self->ports[i], self, err);
    if (code != BATON_OK) {
        verbs_close(manager, self);
        return code;
    }
    *state = self;
    return BATON_OK;
}

void verbs_close(struct manager *manager, void *state)
{
    struct verbs_manager *self = state;
    (void)manager;
    verbs_ports_close(self);
    free(self->ranges);
    free(self);
}

uint32_t verbs_range_find(const struct verbs_range *ranges, uint32_t count, uint64_t address,
                          uint64_t length, uint32_t *hint)
{
    uint32_t low = 0, high = count;
    if (*hint < count && address >= ranges[*hint].address &&
        address - ranges[*hint].address < ranges[*hint].length)
        low = *hint, high = *hint + 1;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (ranges[middle].address <= address)
            low = middle;
        else
            high = middle;
    }
    if (low >= count || address < ranges[low].address ||
        address - ranges[low].address > ranges[low].length ||
        length > ranges[low].length - (address - ranges[low].address))
        return UINT32_MAX;
    *hint = low;
    return low;
}

/* ---- the key ---- */

int verbs_export_key(struct manager *manager, void *state, uint8_t **key, uint32_t *key_bytes,
                     struct error err)
{
    const struct verbs_manager *self = state;
    (void)manager;
    size_t size = 4 + 4 + (size_t)self->port_count * KEY_PORT_BYTES + 4 +
                  (size_t)self->range_count * (16 + 4 * (size_t)self->port_count);
    if (size > WIRE_KEY_MAX)
        return verbs_host->error_set(err, BATON_ELIMIT,
                                     "%u pieces of memory on %u ports are too many to tell",
                                     self->range_count, self->port_count);
    uint8_t *bytes = calloc(1, size), *at = bytes;
    if (!bytes)
        return verbs_host->error_set(err, BATON_ENOMEM, "out of memory for the verbs key");
    uint32_t header[2] = {KEY_VERSION, self->port_count};
    memcpy(at, header, 8);
    at += 8;
    for (uint32_t i = 0; i < self->port_count; i++, at += KEY_PORT_BYTES) {
        const struct verbs_port *port = &self->ports[i];
        memcpy(at, port->gid.raw, 16);
        memcpy(at + 16, &port->attributes.lid, 2);
        at[18] = port->attributes.link_layer;
        at[19] = (uint8_t)port->attributes.active_mtu;
        snprintf((char *)at + 20, 24, "%.23s", port->name);
    }
    memcpy(at, &self->range_count, 4);
    at += 4;
    memcpy(at, self->ranges, self->range_count * sizeof(*self->ranges));
    at += self->range_count * sizeof(*self->ranges);
    for (uint32_t i = 0; i < self->port_count; i++)
        for (uint32_t k = 0; k < self->range_count; k++, at += 4)
            memcpy(at, &self->ports[i].regions[k]->rkey, 4);
    *key = bytes;
    *key_bytes = (uint32_t)size;
    return BATON_OK;
}

int verbs_peer_read(const struct wire_backend_key *key, struct verbs_peer *out,
                    struct error err)
{
    struct verbs_peer peer = {0};
    uint32_t header[2] = {0};
    size_t left = key ? key->key_bytes : 0;
    const uint8_t *at = key ? key->key : NULL;
    if (left >= 8) {
        memcpy(header, at, 8);
        at += 8;
        left -= 8;
    }
    peer.port_count = header[1];
    if (header[0] != KEY_VERSION || !peer.port_count || peer.port_count > VERBS_RAILS_MAX ||
        left < peer.port_count * KEY_PORT_BYTES + 4)
        return verbs_host->error_set(err, BATON_EPROTOCOL, "the peer's verbs key is malformed");
    for (uint32_t i = 0; i < peer.port_count; i++, at += KEY_PORT_BYTES) {
        memcpy(peer.ports[i].gid.raw, at, 16);
        memcpy(&peer.ports[i].lid, at + 16, 2);
        peer.ports[i].link_layer = at[18];
        peer.ports[i].mtu = at[19];
        memcpy(peer.ports[i].name, at + 20, 23);
    }
    memcpy(&peer.range_count, at, 4);
    at += 4;
    left -= peer.port_count * KEY_PORT_BYTES + 4;
    if (left / (16 + 4 * peer.port_count) != peer.range_count ||
        left % (16 + 4 * peer.port_count))
        return verbs_host->error_set(err, BATON_EPROTOCOL, "the peer's verbs key is malformed");
    peer.ranges = calloc((size_t)peer.range_count + 1, sizeof(*peer.ranges));
    peer.keys = calloc((size_t)peer.range_count * peer.port_count + 1, sizeof(*peer.keys));
    if (!peer.ranges || !peer.keys) {
        verbs_peer_free(&peer);
        return verbs_host->error_set(err, BATON_ENOMEM, "out of memory for the peer's keys");
    }
    memcpy(peer.ranges, at, peer.range_count * sizeof(*peer.ranges));
    at += peer.range_count * sizeof(*peer.ranges);
    memcpy(peer.keys, at, (size_t)peer.range_count * peer.port_count * sizeof(*peer.keys));
    *out = peer;
    return BATON_OK;
}

void verbs_peer_free(struct verbs_peer *peer)
{
    free(peer->ranges);
    free(peer->keys);
    *peer = (struct verbs_peer){0};
}
