/* SPDX-License-Identifier: Apache-2.0 */
/* What RDMA devices there are, in words: the answer to "why does it not use my card?". The ports that
 * a manager would take are found by the very code that it would run (verbs_ports_open); here they
 * are only looked up in the list of all ports. */
#include "verbs.h"

#include <dirent.h>
#include <errno.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The kernel's list, which a container sees even where it was given no device file. */
static bool kernel_device(char *name, size_t size)
{
    bool found = false;
    DIR *folder = opendir("/sys/class/infiniband");
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));) {
        found = entry->d_name[0] != '.';
        if (found)
            snprintf(name, size, "%.63s", entry->d_name);
    }
    if (folder)
        closedir(folder);
    return found;
}

int verbs_available(char *why, size_t why_size)
{
    int count = 0;
    char name[64];
    struct ibv_device **devices = ibv_get_device_list(&count);
    if (devices)
        ibv_free_device_list(devices);
    if (count > 0) {
        why[0] = 0;
        return 0;
    }
    if (kernel_device(name, sizeof(name)))
        snprintf(why, why_size,
                 "the kernel has %s, but no /dev/infiniband/uverbs* is here (modprobe "
                 "ib_uverbs; --device for a container)",
                 name);
    else
        snprintf(why, why_size,
                 "no RDMA device (is its driver loaded? `rdma link` lists them)");
    return -1;
}

struct survey {
    struct baton_device_list *list;
    const struct verbs_manager *chosen;
    const char *device; /* the one that is being looked at */
    struct ibv_context *context;
    struct ibv_device_attr attributes;
    struct ibv_gid_entry gids[VERBS_GIDS_MAX]; /* of all its ports */
    ssize_t gid_count;
};

static const char *state_name(enum ibv_port_state state)
{
    switch (state) {
    case IBV_PORT_DOWN: return "down";
    case IBV_PORT_INIT: return "init";
    case IBV_PORT_ARMED: return "armed";
    case IBV_PORT_ACTIVE: return "active";
    default: return "unknown";
    }
}

static uint32_t link_layer_of(uint8_t link_layer)
{
    if (link_layer == IBV_LINK_LAYER_INFINIBAND)
        return BATON_LINK_LAYER_INFINIBAND;
    return link_layer == IBV_LINK_LAYER_ETHERNET ? BATON_LINK_LAYER_ETHERNET
                                                 : BATON_LINK_LAYER_UNKNOWN;
}

static uint32_t mtu_bytes(enum ibv_mtu mtu)
{
    return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

static const char *gid_type_name(uint32_t type)
{
    return type == IBV_GID_TYPE_IB        ? "InfiniBand"
           : type == IBV_GID_TYPE_ROCE_V2 ? "RoCE v2"
                                          : "RoCE v1";
}

static const char *gid_kind_text(enum verbs_gid_kind kind)
{
    switch (kind) {
    case VERBS_GID_ROCE_V1: return "does not leave its Ethernet segment, and peers must agree";
    case VERBS_GID_IPV6_LOCAL: return "link-local: reaches this network segment only";
    case VERBS_GID_IPV6: return "IPv6 address: can be routed";
    case VERBS_GID_IPV4: return "IPv4 address: can be routed";
    case VERBS_GID_IB_LOCAL: return "the subnet's default prefix: reaches this subnet";
    default: return "a subnet prefix of its own";
    }
}

/* Bit n: rail n goes through this port; with a GID index, by that one. */
static uint32_t rails_of(const struct survey *survey, int port, int gid_index)
{
    uint32_t rails = 0;
    for (uint32_t i = 0; i < survey->chosen->port_count; i++) {
        const struct verbs_port *rail = &survey->chosen->ports[i];
        if (strcmp(rail->name, survey->device) == 0 && rail->number == port &&
            (gid_index < 0 || rail->gid_index == gid_index))
            rails |= 1u << i;
    }
    return rails;
}

/* ---- GIDs ---- */

/* Whether the port would take this one if no index were named: the first of the best kind. */
static bool gid_is_best(const struct survey *survey, const struct ibv_gid_entry *entry)
{
    for (ssize_t i = 0; i < survey->gid_count; i++) {
        const struct ibv_gid_entry *other = &survey->gids[i];
        if (other->port_num != entry->port_num)
            continue;
        enum verbs_gid_kind ours = verbs_gid_kind(entry), theirs = verbs_gid_kind(other);
        if (theirs > ours || (theirs == ours && other->gid_index < entry->gid_index))
            return false;
    }
    return true;
}

static int gid_add(struct survey *survey, const struct ibv_gid_entry *entry, struct error err)
{
    struct baton_device_list *list = survey->list;
    baton_gid_info *more = realloc(list->gids, (list->gid_count + 1) * sizeof(*more));
    if (!more)
        return verbs_host->error_set(err, BATON_ENOMEM, "out of memory for GIDs");
    list->gids = more;
    baton_gid_info *gid = &more[list->gid_count++];
    *gid = (baton_gid_info){.struct_size = sizeof(*gid),
                            .index = entry->gid_index,
                            .rails =
                                rails_of(survey, (int)entry->port_num, (int)entry->gid_index)};
    verbs_gid_text(&entry->gid, gid->gid, sizeof(gid->gid));
    snprintf(gid->type, sizeof(gid->type), "%s", gid_type_name(entry->gid_type));
    snprintf(gid->why, sizeof(gid->why), "%s%s", gid_kind_text(verbs_gid_kind(entry)),
             !gid->rails                  ? ""
             : gid_is_best(survey, entry) ? "; the best of this port"
                                          : "; named in ib_device");
    char name[IF_NAMESIZE];
    if (entry->ndev_ifindex && if_indextoname(entry->ndev_ifindex, name))
        snprintf(gid->netdev, sizeof(gid->netdev), "%s", name);
    return BATON_OK;
}

static int port_add_gids(struct survey *survey, baton_port_info *port, struct error err)
{
    for (ssize_t i = 0; i < survey->gid_count; i++) {
        if (survey->gids[i].port_num != port->port)
            continue;
        int code = gid_add(survey, &survey->gids[i], err);
        if (code != BATON_OK)
            return code;
        port->gid_count++;
    }
    return BATON_OK;
}

/* ---- ports ---- */

static int port_add(struct survey *survey, baton_port_info **out, struct error err)
{
    struct baton_device_list *list = survey->list;
    baton_port_info *more = realloc(list->ports, (list->port_count + 1) * sizeof(*more));
    if (!more)
        return verbs_host->error_set(err, BATON_ENOMEM, "out of memory for ports");
    list->ports = more;
    baton_port_info *port = &more[list->port_count++];
    *port = (baton_port_info){.struct_size = sizeof(*port)};
    snprintf(port->device, sizeof(port->device), "%s", survey->device);
    snprintf(port->state, sizeof(port->state), "unknown");
    *out = port;
    return BATON_OK;
}

static void port_explain(const struct survey *survey, const struct ibv_port_attr *attributes,
                         baton_port_info *port)
{
    const struct verbs_manager *chosen = survey->chosen;
    size_t size = sizeof(port->why);
    if (port->rails)
        snprintf(port->why, size,
                 chosen->named ? "named in ib_device"
                               : "active, and none that is active is faster");
    else if (attributes->state != IBV_PORT_ACTIVE)
        snprintf(port->why, size, "%s", verbs_port_trouble(attributes->state));
    else if (!port->gid_count)
        snprintf(port->why, size, "it has no GID: has its interface an address?");
    else if (survey->list->problem[0])
        snprintf(port->why, size, "none is used, because of the problem");
    else if (chosen->named)
        snprintf(port->why, size, "not named in ib_device");
    else if (port->speed_mbps < chosen->fastest)
        snprintf(port->why, size, "slower than the fastest (%llu Mb/s)",
                 (unsigned long long)chosen->fastest);
    else
        snprintf(port->why, size, "a rank uses at most %d ports", VERBS_RAILS_MAX);
}

static int port_survey(struct survey *survey, int number, struct error err)
{
    const struct ibv_device_attr *device = &survey->attributes;
    struct ibv_port_attr attributes;
    baton_port_info *port = NULL;
    int code = port_add(survey, &port, err);
    if (code != BATON_OK)
        return code;
    port->port = (uint32_t)number;
    port->max_sge = (uint32_t)device->max_sge;
    port->max_sge_read =
        (uint32_t)(device->max_sge_rd > 0 ? device->max_sge_rd : device->max_sge);
    port->max_requests = (uint32_t)device->max_qp_wr;
    if (ibv_query_port(survey->context, (uint8_t)number, &attributes) != 0) {
        snprintf(port->why, sizeof(port->why), "it cannot be queried: %s", strerror(errno));
        return BATON_OK;
    }
    snprintf(port->state, sizeof(port->state), "%s", state_name(attributes.state));
    port->link_layer = link_layer_of(attributes.link_layer);
    port->lid = attributes.lid;
    port->mtu = mtu_bytes(attributes.active_mtu);
    port->mtu_max = mtu_bytes(attributes.max_mtu);
    port->speed_mbps = verbs_port_speed(&attributes);
    port->rails = rails_of(survey, number, -1);
    code = port_add_gids(survey, port, err);
    if (code == BATON_OK)
        port_explain(survey, &attributes, port);
    return code;
}

/* ---- devices ---- */

static int device_refused(struct survey *survey, const char *what, int problem,
                          struct error err)
{
    baton_port_info *port = NULL;
    int code = port_add(survey, &port, err);
    if (code != BATON_OK)
        return code;
    snprintf(port->why, sizeof(port->why), "it cannot be %s: %s%s", what, strerror(problem),
             problem == EACCES || problem == EPERM || problem == ENOENT
                 ? " (is /dev/infiniband/uverbs* here, and may this user open it?)"
                 : "");
    return BATON_OK;
}

static int device_survey(struct survey *survey, struct ibv_device *device, struct error err)
{
    survey->device = ibv_get_device_name(device);
    errno = 0;
    survey->context = ibv_open_device(device);
    if (!survey->context)
        return device_refused(survey, "opened", errno, err);
    int code = BATON_OK;
    if (ibv_query_device(survey->context, &survey->attributes) != 0) {
        code = device_refused(survey, "queried", errno, err);
        survey->attributes.phys_port_cnt = 0;
    }
    survey->gid_count = ibv_query_gid_table(survey->context, survey->gids, VERBS_GIDS_MAX, 0);
    for (int number = 1; code == BATON_OK && number <= survey->attributes.phys_port_cnt;
         number++)
        code = port_survey(survey, number, err);
    ibv_close_device(survey->context);
    return code;
}

int verbs_describe(const char *ib_device, uint32_t rank, struct baton_device_list *out,
                   struct error err)
{
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    if (!devices || !count) {
        char why[VERBS_WHY_MAX];
        if (devices)
            ibv_free_device_list(devices);
        verbs_available(why, sizeof(why));
        return verbs_host->error_set(err, BATON_EUNSUPPORTED, "%s", why);
    }
    struct verbs_manager *chosen = calloc(1, sizeof(*chosen));
    struct survey *survey = calloc(1, sizeof(*survey));
    int code = BATON_OK;
    if (!chosen || !survey) {
        code = verbs_host->error_set(err, BATON_ENOMEM, "out of memory for devices");
        goto free_memory;
    }
    if (verbs_ports_open(chosen, ib_device, rank, ERROR_BUFFER(out->problem)) != BATON_OK)
        verbs_ports_close(chosen); /* a manager would use none of them */
    survey->list = out;
    survey->chosen = chosen;
    for (int i = 0; code == BATON_OK && i < count; i++)
        code = device_survey(survey, devices[i], err);
    verbs_ports_close(chosen);
free_memory:
    free(survey);
    free(chosen);
    ibv_free_device_list(devices);
    return code;
}
