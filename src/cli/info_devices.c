/* SPDX-License-Identifier: Apache-2.0 */
/* See info_devices.h. Everything comes through the public interface, so that an engine's own
 * diagnosis can say the same. */
#include "info_devices.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *link_layer_name(uint32_t link_layer)
{
    switch (link_layer) {
    case BATON_LINK_LAYER_INFINIBAND: return "InfiniBand";
    case BATON_LINK_LAYER_ETHERNET: return "Ethernet";
    default: return "unknown";
    }
}

/* "rail 0", "rails 0,2"; "" for none. */
static const char *rails_text(uint32_t rails, char *out, size_t size)
{
    size_t used = 0;
    out[0] = '\0';
    for (uint32_t i = 0; i < 32 && used < size; i++)
        if (rails & 1u << i)
            used += (size_t)snprintf(out + used, size - used, "%s%u", used ? "," : "rail ", i);
    return out;
}

/* ---- text -------------------------------------------------------------------------------- */

static void port_print(const baton_port_info *port)
{
    char name[96], rails[96];
    snprintf(name, sizeof(name), "%s port %u", port->device, port->port);
    if (!port->port) {
        printf("  %-14s %-12s %s\n", port->device, "not usable", port->why);
        return;
    }
    printf("  %-14s %-12s %s, %.1f Gb/s, MTU %u of %u, max_sge %u (read %u)", name, port->state,
           link_layer_name(port->link_layer), (double)port->speed_mbps / 1e3, port->mtu,
           port->mtu_max, port->max_sge, port->max_sge_read);
    if (port->link_layer == BATON_LINK_LAYER_INFINIBAND)
        printf(", LID %u", port->lid);
    printf("\n  %-14s %-12s %s\n", "",
           port->rails ? rails_text(port->rails, rails, sizeof(rails)) : "not used", port->why);
}

static void gid_print(const baton_gid_info *gid)
{
    char name[32], rails[96];
    snprintf(name, sizeof(name), "  GID %u", gid->index);
    printf("  %-14s %-12s %s, %s%s%s; %s\n", name, rails_text(gid->rails, rails, sizeof(rails)),
           gid->gid, gid->type, gid->netdev[0] ? ", " : "", gid->netdev, gid->why);
}

void devices_print(const char *ib_device, uint32_t rank)
{
    baton_device_list *list = NULL;
    baton_port_info port = {.struct_size = sizeof(port)};
    baton_gid_info gid = {.struct_size = sizeof(gid)};
    char text[512];
    printf("\nRDMA devices\n");
    if (baton_device_list_open(ib_device, rank, &list, text, sizeof(text))) {
        printf("  %-14s %-12s %s\n", "none", "", text);
        return;
    }
    const char *problem = baton_device_list_problem(list);
    if (problem[0])
        printf("  %-14s %-12s %s\n", "problem", "", problem);
    for (uint32_t i = 0; baton_device_list_port(list, i, &port) == 0; i++) {
        port_print(&port);
        for (uint32_t k = 0; baton_device_list_gid(list, i, k, &gid) == 0; k++)
            gid_print(&gid);
    }
    baton_device_list_close(list);
}

/* ---- JSON -------------------------------------------------------------------------------- */

static json_t *rails_json(uint32_t rails)
{
    json_t *list = json_array();
    for (uint32_t i = 0; i < 32; i++)
        if (rails & 1u << i)
            json_array_append_new(list, json_integer(i));
    return list;
}

static json_t *gid_json(const baton_gid_info *gid)
{
    return json_pack("{s:i, s:s, s:s, s:s, s:o, s:s}", "index", (int)gid->index, "gid",
                     gid->gid, "type", gid->type, "netdev", gid->netdev, "rails",
                     rails_json(gid->rails), "why", gid->why);
}

static json_t *port_json(const baton_port_info *port, json_t *gids)
{
    return json_pack("{s:s, s:i, s:s, s:s, s:i, s:i, s:i, s:I, s:i, s:i, s:i, s:o, s:s, s:o}",
                     "device", port->device, "port", (int)port->port, "state", port->state,
                     "link_layer", link_layer_name(port->link_layer), "lid", (int)port->lid,
                     "mtu", (int)port->mtu, "mtu_max", (int)port->mtu_max, "speed_mbps",
                     (json_int_t)port->speed_mbps, "max_sge", (int)port->max_sge,
                     "max_sge_read", (int)port->max_sge_read, "max_requests",
                     (int)port->max_requests, "rails", rails_json(port->rails), "why",
                     port->why, "gids", gids);
}

json_t *devices_json(const char *ib_device, uint32_t rank)
{
    baton_device_list *list = NULL;
    baton_port_info port = {.struct_size = sizeof(port)};
    baton_gid_info gid = {.struct_size = sizeof(gid)};
    char text[512];
    json_t *ports = json_array();
    if (baton_device_list_open(ib_device, rank, &list, text, sizeof(text)))
        return json_pack("{s:o, s:s}", "ports", ports, "problem", text);
    for (uint32_t i = 0; baton_device_list_port(list, i, &port) == 0; i++) {
        json_t *gids = json_array();
        for (uint32_t k = 0; baton_device_list_gid(list, i, k, &gid) == 0; k++)
            json_array_append_new(gids, gid_json(&gid));
        json_array_append_new(ports, port_json(&port, gids));
    }
    json_t *root =
        json_pack("{s:o, s:s}", "ports", ports, "problem", baton_device_list_problem(list));
    baton_device_list_close(list);
    return root;
}
