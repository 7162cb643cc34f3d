/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what the compiler makes of include/baton.h, as JSON: the size of every public struct,
 * offset and size of its fields, and the constants. Bindings in other languages repeat the header
 * by hand; their tests hold what they wrote against this table, so that a field added here and
 * forgotten there is a red test and not a corrupted call. */
#include <baton.h>

#include <stddef.h>
#include <stdio.h>

static const char *separator = "";

static void print_field(const char *name, size_t offset, size_t size)
{
    printf("%s\"%s\": [%zu, %zu]", separator, name, offset, size);
    separator = ", ";
}

static void print_constant(const char *name, long long value)
{
    printf("%s\"%s\": %lld", separator, name, value);
    separator = ", ";
}

static void begin_struct(const char *name, size_t size)
{
    printf("%s\"%s\": {\"size\": %zu, \"fields\": {", separator, name, size);
    separator = "";
}

static void end_struct(void)
{
    printf("}}");
    separator = ",\n";
}

#define BEGIN() begin_struct(NAME_OF(TYPE), sizeof(TYPE))
#define NAME_OF(type) QUOTE(type)
#define QUOTE(type) #type
#define FIELD(name) print_field(#name, offsetof(TYPE, name), sizeof(((TYPE *)0)->name))

#define TYPE baton_base
static void print_base(void)
{
    BEGIN();
    FIELD(address);
    FIELD(bytes);
    FIELD(item_bytes);
    end_struct();
}
#undef TYPE

#define TYPE baton_layout
static void print_layout(void)
{
    BEGIN();
    FIELD(struct_size);
    FIELD(memory);
    FIELD(dtype);
    FIELD(pages);
    FIELD(tokens_per_page);
    FIELD(layers);
    FIELD(first_layer);
    FIELD(kv);
    FIELD(heads);
    FIELD(first_head);
    FIELD(total_heads);
    FIELD(head_bytes);
    FIELD(page_stride);
    FIELD(layer_stride);
    FIELD(kv_stride);
    FIELD(head_stride);
    FIELD(token_stride);
    FIELD(bases);
    FIELD(base_count);
    FIELD(reserved);
    end_struct();
}
#undef TYPE

#define TYPE baton_region
static void print_region(void)
{
    BEGIN();
    FIELD(struct_size);
    FIELD(kind);
    FIELD(name);
    FIELD(layout);
    end_struct();
}
#undef TYPE

#define TYPE baton_aux_field
static void print_aux_field(void)
{
    BEGIN();
    FIELD(name);
    FIELD(dtype);
    FIELD(count);
    FIELD(offset);
    end_struct();
}
#undef TYPE

#define TYPE baton_aux
static void print_aux(void)
{
    BEGIN();
    FIELD(struct_size);
    FIELD(slots);
    FIELD(address);
    FIELD(slot_bytes);
    FIELD(fields);
    FIELD(field_count);
    FIELD(reserved);
    end_struct();
}
#undef TYPE

#define TYPE baton_manager_options
static void print_manager_options(void)
{
    BEGIN();
    FIELD(struct_size);
    FIELD(rank);
    FIELD(tp_size);
    FIELD(pp_rank);
    FIELD(pp_size);
    FIELD(dp_rank);
    FIELD(dp_size);
    FIELD(host);
    FIELD(port);
    FIELD(register_rank);
    FIELD(bootstrap);
    FIELD(bootstrap_allow);
    FIELD(fingerprint);
    FIELD(kv_cache_dtype);
    FIELD(regions);
    FIELD(region_count);
    FIELD(max_rooms);
    FIELD(aux);
    FIELD(backends);
    FIELD(copy_threads);
    FIELD(tcp_streams);
    FIELD(heartbeat_ms);
    FIELD(silent_ms);
    FIELD(match_timeout_ms);
    FIELD(deadline_ms);
    FIELD(key);
    FIELD(tls_certificate);
    FIELD(tls_key);
    FIELD(tls_ca);
    FIELD(ib_device);
    FIELD(max_inflight);
    FIELD(max_sge);
    FIELD(verify);
    FIELD(verbose);
    FIELD(reach_timeout_ms);
    FIELD(reserved);
    end_struct();
}
#undef TYPE

#define TYPE baton_counters
static void print_counters(void)
{
    BEGIN();
    FIELD(struct_size);
    FIELD(rooms_open);
    FIELD(rooms_quarantined);
    FIELD(pages_quarantined);
    FIELD(links_up);
    FIELD(links_degraded);
    FIELD(rooms_succeeded);
    FIELD(rooms_failed);
    FIELD(rooms_refused);
    FIELD(bytes_sent);
    FIELD(operations_sent);
    FIELD(bytes_received);
    FIELD(frames_bad);
    FIELD(frames_stale);
    FIELD(links_lost);
    FIELD(links_refused);
    FIELD(fallbacks);
    FIELD(fences);
    end_struct();
}
#undef TYPE

#define TYPE baton_timeline
static void print_timeline(void)
{
    BEGIN();
    FIELD(struct_size);
    FIELD(state);
    FIELD(bootstrapped_ns);
    FIELD(granted_ns);
    FIELD(first_send_ns);
    FIELD(last_byte_ns);
    FIELD(ended_ns);
    FIELD(fenced_ns);
    FIELD(bytes);
    FIELD(operations);
    FIELD(peers);
    FIELD(packed);
    FIELD(backend);
    FIELD(reason);
    FIELD(requests);
    FIELD(doorbells);
    end_struct();
}
#undef TYPE

#define TYPE baton_sender_options
static void print_sender_options(void)
{
    BEGIN();
    FIELD(struct_size);
    FIELD(deadline_ms);
    FIELD(room);
    FIELD(bootstrap);
    FIELD(dest_ranks);
    FIELD(dest_rank_count);
    FIELD(layerwise);
    end_struct();
}
#undef TYPE

#define TYPE baton_sender_init_options
static void print_sender_init_options(void)
{
    BEGIN();
    FIELD(struct_size);
    FIELD(pages);
    FIELD(first_token);
    FIELD(tokens);
    FIELD(aux_slot);
    end_struct();
}
#undef TYPE

#define TYPE baton_receiver_options
static void print_receiver_options(void)
{
    BEGIN();
    FIELD(struct_size);
    FIELD(deadline_ms);
    FIELD(room);
    FIELD(bootstrap);
    FIELD(prefill_dp_rank);
    FIELD(queue_position);
    end_struct();
}
#undef TYPE

#define TYPE baton_state_pages
static void print_state_pages(void)
{
    BEGIN();
    FIELD(region);
    FIELD(first_token);
    FIELD(pages);
    FIELD(count);
    end_struct();
}
#undef TYPE

#define TYPE baton_receiver_init_options
static void print_receiver_init_options(void)
{
    BEGIN();
    FIELD(struct_size);
    FIELD(page_count);
    FIELD(pages);
    FIELD(prefix);
    FIELD(aux_slot);
    FIELD(states);
    FIELD(state_count);
    FIELD(deadline_ms);
    end_struct();
}
#undef TYPE

#define TYPE baton_backend_info
static void print_backend_info(void)
{
    BEGIN();
    FIELD(struct_size);
    FIELD(available);
    FIELD(name);
    FIELD(about);
    FIELD(why);
    end_struct();
}
#undef TYPE

#define TYPE baton_port_info
static void print_port_info(void)
{
    BEGIN();
    FIELD(struct_size);
    FIELD(port);
    FIELD(device);
    FIELD(state);
    FIELD(link_layer);
    FIELD(lid);
    FIELD(mtu);
    FIELD(mtu_max);
    FIELD(speed_mbps);
    FIELD(max_sge);
    FIELD(max_sge_read);
    FIELD(max_requests);
    FIELD(gid_count);
    FIELD(rails);
    FIELD(reserved);
    FIELD(why);
    end_struct();
}
#undef TYPE

#define TYPE baton_gid_info
static void print_gid_info(void)
{
    BEGIN();
    FIELD(struct_size);
    FIELD(index);
    FIELD(gid);
    FIELD(type);
    FIELD(netdev);
    FIELD(rails);
    FIELD(reserved);
    FIELD(why);
    end_struct();
}
#undef TYPE

#define CONSTANT(name) print_constant(#name, name)
#define ERROR_CONSTANT(name, value, text) print_constant(#name, name);

static void print_constants(void)
{
    BATON_ERROR_LIST(ERROR_CONSTANT)
    CONSTANT(BATON_OK);
    CONSTANT(BATON_AGAIN);
    CONSTANT(BATON_FAILED);
    CONSTANT(BATON_BOOTSTRAPPING);
    CONSTANT(BATON_WAITING_FOR_INPUT);
    CONSTANT(BATON_TRANSFERRING);
    CONSTANT(BATON_SUCCESS);
    CONSTANT(BATON_MEMORY_HOST);
    CONSTANT(BATON_MEMORY_CUDA);
    CONSTANT(BATON_DTYPE_OPAQUE);
    CONSTANT(BATON_DTYPE_U8);
    CONSTANT(BATON_DTYPE_I8);
    CONSTANT(BATON_DTYPE_F8_E4M3);
    CONSTANT(BATON_DTYPE_F8_E5M2);
    CONSTANT(BATON_DTYPE_F16);
    CONSTANT(BATON_DTYPE_BF16);
    CONSTANT(BATON_DTYPE_F32);
    CONSTANT(BATON_DTYPE_F64);
    CONSTANT(BATON_DTYPE_I32);
    CONSTANT(BATON_DTYPE_U32);
    CONSTANT(BATON_DTYPE_I64);
    CONSTANT(BATON_DTYPE_U64);
    CONSTANT(BATON_ORDER_LAYER_MAJOR);
    CONSTANT(BATON_ORDER_HEAD_MAJOR);
    CONSTANT(BATON_ORDER_PER_LAYER);
    CONSTANT(BATON_ORDER_TOKEN_MAJOR);
    CONSTANT(BATON_REGION_KV);
    CONSTANT(BATON_REGION_SLOT);
    CONSTANT(BATON_REGION_WINDOW);
    CONSTANT(BATON_REGION_SEQUENCE);
    CONSTANT(BATON_LINK_LAYER_UNKNOWN);
    CONSTANT(BATON_LINK_LAYER_INFINIBAND);
    CONSTANT(BATON_LINK_LAYER_ETHERNET);
}

int main(void)
{
    printf("{\"structs\": {\n");
    print_base();
    print_layout();
    print_region();
    print_aux_field();
    print_aux();
    print_manager_options();
    print_counters();
    print_timeline();
    print_sender_options();
    print_sender_init_options();
    print_receiver_options();
    print_state_pages();
    print_receiver_init_options();
    print_backend_info();
    print_port_info();
    print_gid_info();
    printf("},\n\"constants\": {");
    separator = "";
    print_constants();
    printf("}}\n");
    return 0;
}
