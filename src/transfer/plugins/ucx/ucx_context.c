/* SPDX-License-Identifier: Apache-2.0 */
/* A manager's half of UCX: one context and the memory registered in it.
 *
 * Memory is registered once per manager, when it is opened, and released when it is closed: a peer's
 * keys die with it. Bases that lie side by side (the layers of one pool) are one registration.
 *
 * Transports: UCX says by itself what it would use here, under whatever the environment demands
 * (UCX_TLS and the like, or BATON_UCX_TLS for us alone). Of that we keep what stores by itself and ends
 * with our UCP worker; ucx.h explains why. UCX tells the list of a context only as printed text, which has had the same
 * form since before 1.13; a text that cannot be read is a refusal. */
#include "ucx.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* ---- transports ---- */

struct transport_list {
    char kept[UCX_TRANSPORTS_MAX];  /* as UCX_TLS wants it: "rc_verbs,ud_verbs:aux" */
    char shown[UCX_TRANSPORTS_MAX]; /* with their devices */
    char left[UCX_TRANSPORTS_MAX];  /* those that we do without */
    uint32_t lines, kept_count, native_count, left_count;
};

enum transport_kind {
    TRANSPORT_STRANGE,  /* the peer stores itself, or nobody knows */
    TRANSPORT_NATIVE,   /* the adapter stores, for as long as our UCP worker exists */
    TRANSPORT_HELPER,   /* needed to connect the native ones */
    TRANSPORT_EMULATED, /* our progress stores */
};

static enum transport_kind transport_kind(const char *name)
{
    static const struct {
        const char *name;
        enum transport_kind kind;
    } known[] = {{"rc_verbs", TRANSPORT_NATIVE}, {"rc_mlx5", TRANSPORT_NATIVE},
                 {"dc_mlx5", TRANSPORT_NATIVE},  {"srd", TRANSPORT_NATIVE},
                 {"ud_verbs", TRANSPORT_HELPER}, {"ud_mlx5", TRANSPORT_HELPER},
                 {"tcp", TRANSPORT_EMULATED}};
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(known[i].name, name) == 0)
            return known[i].kind;
    return TRANSPORT_STRANGE;
}

static bool word_listed(const char *list, const char *word, char separator)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == separator) && (!at[length] || at[length] == separator))
            return true;
    return false;
}

static void word_add(char *list, const char *word, char separator)
{
    size_t used = strlen(list), length = strlen(word);
    if (word_listed(list, word, separator) || used + length + 2 > UCX_TRANSPORTS_MAX)
        return;
    if (used)
        list[used++] = separator;
    memcpy(list + used, word, length + 1);
}

/* Does the environment ask for it by its name? */
static bool transport_named(const char *name)
{
    const char *list = getenv("BATON_UCX_TLS");
    if (!list)
        list = getenv("UCX_TLS");
    return list && list[0] != '^' && word_listed(list, name, ',');
}

/* "#      resource 1  :  md 1  dev 1  flags -- tcp/eth0"; 'a': for connecting only. */
static void transport_read(struct transport_list *list, const char *line)
{
    char flags[8], resource[96], name[64];
    if (sscanf(line, "# resource %*d : md %*d dev %*d flags %7s %95s", flags, resource) != 2)
        return;
    size_t length = strcspn(resource, "/");
    if (!resource[length] || length > 48)
        return;
    snprintf(name, sizeof(name), "%.*s", (int)length, resource);
    enum transport_kind kind = transport_kind(name);
    bool kept = kind == TRANSPORT_NATIVE ||
                (kind == TRANSPORT_EMULATED && transport_named(name)) ||
                (kind == TRANSPORT_HELPER && flags[0] == 'a');
    list->lines++;
    if (!kept) {
        word_add(list->left, name, ' ');
        list->left_count++;
    } else if (kind != TRANSPORT_HELPER) {
        word_add(list->shown, resource, ' ');
        list->kept_count++;
        list->native_count += kind == TRANSPORT_NATIVE;
    }
    if (kind == TRANSPORT_HELPER)
        strcat(name, ":aux");
    if (kept || kind == TRANSPORT_HELPER)
        word_add(list->kept, name, ',');
}

static bool transports_read(ucp_context_h context, struct transport_list *list)
{
    char *text = NULL, *rest = NULL;
    size_t size = 0;
    *list = (struct transport_list){0};
    FILE *stream = open_memstream(&text, &size);
    if (!stream)
        return false;
    ucp_context_print_info(context, stream);
    bool whole = fclose(stream) == 0;
    for (char *line = whole ? strtok_r(text, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest))
        transport_read(list, line);
    free(text);
    return list->lines > 0;
}

/* ---- the context ---- */

/* ib_device names the network devices, as it does for verbs. */
static int config_take_devices(ucp_config_t *config, const struct manager *manager,
                               struct error err)
{
    struct device_choice choices[UCX_RAILS_MAX];
    uint32_t count = 0;
    char devices[UCX_RAILS_MAX * 80] = "", gid[16];
    const char *text = manager->config.ib_device;
    if (!text[0])
        text = getenv("BATON_IB_DEVICE");
    int code = ucx_host->device_list_parse(text, manager->config.rank, choices, UCX_RAILS_MAX,
                                           &count, err);
    if (code != BATON_OK || !count)
        return code;
    size_t used = 0;
    for (uint32_t i = 0; i < count; i++)
        used +=
            (size_t)snprintf(devices + used, sizeof(devices) - used, "%s%s:%d", i ? "," : "",
                             choices[i].name, choices[i].port ? choices[i].port : 1);
    snprintf(gid, sizeof(gid), "%d", choices[0].gid_index);
    ucs_status_t status = ucp_config_modify(config, "NET_DEVICES", devices);
    if (status == UCS_OK && choices[0].gid_index >= 0)
        status = ucp_config_modify(config, "IB_GID_INDEX", gid);
    return status == UCS_OK ? BATON_OK
                            : ucx_host->error_set(err, BATON_EINVAL, "ib_device %s: UCX: %s",
                                                  devices, ucx_reason(status));
}

static void context_close(ucp_context_h context)
{
    ucx_call_begin();
    ucp_cleanup(context);
    ucx_call_end();
}

static int context_make(const ucp_config_t *config, ucp_context_h *out,
                        struct transport_list *list, struct error err)
{
    ucp_params_t wanted = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
                           .features = UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
                           .name = "baton"};
    ucp_context_h context;
    ucx_call_begin();
    ucs_status_t status = ucp_init(&wanted, config, &context);
    ucx_call_end();
    if (status != UCS_OK)
        return ucx_host->error_set(err, BATON_EUNSUPPORTED, "UCX does not start: %s",
                                   ucx_reason(status));
    if (!transports_read(context, list)) {
        context_close(context);
        return ucx_host->error_set(err, BATON_EUNSUPPORTED,
                                   "UCX %s does not say which transports it uses",
                                   ucp_get_version_string());
    }
    *out = context;
    return BATON_OK;
}

/* What UCX keeps ready for messages, of which we send none. There is a UCP worker for each rail of
 * each link: with its usual 4,096 receives and buffers a thousand at a time one takes 77 MB and
 * 0.2 s to destroy, so 9 MB and 0.03 s (Soft-RoCE in a VM). */
static ucs_status_t config_save_memory(ucp_config_t *config)
{
    static const char *const settings[][2] = {
        {"RX_QUEUE_LEN", "256"}, {"RX_BUFS_GROW", "128"}, {"TX_BUFS_GROW", "64"}};
    static const char *const prefixes[] = {"IB", "RC", "UD", "DC"};
    char name[64];
    ucs_status_t status = UCS_OK;
    for (size_t i = 0; status == UCS_OK && i < sizeof(settings) / sizeof(settings[0]); i++) {
        bool set = false;
        for (size_t k = 0; k < sizeof(prefixes) / sizeof(prefixes[0]); k++) {
            snprintf(name, sizeof(name), "UCX_%s_%s", prefixes[k], settings[i][0]);
            set |= getenv(name) != NULL;
        }
        snprintf(name, sizeof(name), "IB_%s", settings[i][0]);
        if (!set)
            status = ucp_config_modify(config, name, settings[i][1]);
    }
    return status;
}

/* Once more, without the transports that are not to be used. */
static int context_remake(ucp_config_t *config, ucp_context_h *context,
                          struct transport_list *list, struct error err)
{
    context_close(*context);
    *context = NULL;
    ucs_status_t status = ucp_config_modify(config, "TLS", list->kept);
    if (status == UCS_OK && list->native_count)
        status = config_save_memory(config);
    if (status != UCS_OK)
        return ucx_host->error_set(err, BATON_EUNSUPPORTED, "UCX_TLS=%s: %s", list->kept,
                                   ucx_reason(status));
    int code = context_make(config, context, list, err);
    if (code == BATON_OK && list->left_count)
        code = ucx_host->error_set(err, BATON_EUNSUPPORTED,
                                   "UCX keeps %s although it was told not to", list->left);
    return code;
}

static int context_open(const struct manager *manager, ucp_context_h *out,
                        struct transport_list *list, struct error err)
{
    ucp_config_t *config;
    ucp_context_h context = NULL;
    ucs_status_t status = ucp_config_read("BATON", NULL, &config);
    if (status != UCS_OK)
        return ucx_host->error_set(err, BATON_EINVAL, "UCX's settings: %s", ucx_reason(status));
    int code = manager ? config_take_devices(config, manager, err) : BATON_OK;
    if (code == BATON_OK)
        code = context_make(config, &context, list, err);
    if (code == BATON_OK && !list->kept_count)
        code = ucx_host->error_set(err, BATON_EUNSUPPORTED,
                                   "UCX has no RDMA here, only %s (UCX_TLS=tcp tries it by "
                                   "messages)",
                                   list->left);
    else if (code == BATON_OK && (list->left_count || list->native_count))
        code = context_remake(config, &context, list, err);
    ucp_config_release(config);
    if (code == BATON_OK)
        *out = context;
    else if (context)
        context_close(context);
    return code;
}

/* Asked for each link: UCX takes a while to find its devices, so it does once. */
static pthread_once_t available_once = PTHREAD_ONCE_INIT;
static char available_text[UCX_WHY_MAX];
static int available_code;

static void available_find(void)
{
    struct transport_list list;
    ucp_context_h context;
    available_code = context_open(NULL, &context, &list, ERROR_BUFFER(available_text));
    if (available_code != BATON_OK)
        return;
    context_close(context);
    snprintf(available_text, sizeof(available_text), "UCX %s: %.200s", ucp_get_version_string(),
             list.shown);
}

int ucx_available(char *why, size_t why_size)
{
    pthread_once(&available_once, available_find);
    snprintf(why, why_size, "%s", available_text);
    return available_code == BATON_OK ? 0 : -1;
}

/* ---- memory ---- */

static int range_compare(const void *left, const void *right)
{
    const struct ucx_range *a = left, *b = right;
    return a->address < b->address ? -1 : a->address > b->address;
}

/* The cell and all bases of all regions, sorted, with neighbours and overlaps joined. */
static int ranges_collect(struct ucx_manager *self, const struct manager *manager,
                          struct error err)
{
    uint32_t bases = 1, count = 0, kept = 0;
    for (uint32_t r = 0; r < manager->region_count; r++)
        bases += manager->regions[r].layout.base_count;
    struct ucx_range *ranges = calloc(bases, sizeof(*ranges));
    self->handles = calloc(bases, sizeof(*self->handles));
    self->cell = calloc(1, sizeof(*self->cell));
    self->ranges = ranges;
    if (!ranges || !self->handles || !self->cell)
        return ucx_host->error_set(err, BATON_ENOMEM, "out of memory for registrations");
    ranges[count++] = (struct ucx_range){(uint64_t)(uintptr_t)self->cell, sizeof(*self->cell)};
    for (uint32_t r = 0; r < manager->region_count; r++)
        for (uint32_t b = 0; b < manager->regions[r].layout.base_count; b++)
            ranges[count++] = (struct ucx_range){manager->regions[r].layout.bases[b].address,
                                                 manager->regions[r].layout.bases[b].bytes};
    qsort(ranges, count, sizeof(*ranges), range_compare);
    for (uint32_t i = 0; i < count; i++) {
        struct ucx_range *last = kept ? &ranges[kept - 1] : NULL;
        uint64_t end = ranges[i].address + ranges[i].length;
        if (!last || ranges[i].address > last->address + last->length)
            ranges[kept++] = ranges[i];
        else if (end > last->address + last->length)
            last->length = end - last->address;
    }
    self->range_count = kept;
    return BATON_OK;
}

static int range_register(struct ucx_manager *self, uint32_t index, struct error err)
{
    const struct ucx_range *range = &self->ranges[index];
    ucp_mem_map_params_t wanted = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                                 UCP_MEM_MAP_PARAM_FIELD_LENGTH,
                                   .address = (void *)(uintptr_t)range->address,
                                   .length = (size_t)range->length};
    ucs_status_t status = ucp_mem_map(self->context, &wanted, &self->handles[index]);
    if (status == UCS_OK)
        return BATON_OK;
    self->handles[index] = NULL;
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    return ucx_host->error_set(
        err, BATON_ESYSTEM, "UCX cannot register %llu bytes: %s%s",
        (unsigned long long)range->length, ucx_reason(status),
        limit.rlim_cur < range->length
            ? " (the limit of locked memory is lower: ulimit -l; LimitMEMLOCK=infinity in a "
              "service)"
            : "");
}

int ucx_open(struct manager *manager, void **state, struct error err)
{
    struct transport_list list;
    struct ucx_manager *self = calloc(1, sizeof(*self));
    if (!self)
        return ucx_host->error_set(err, BATON_ENOMEM, "out of memory for UCX");
    int code = context_open(manager, &self->context, &list, err);
    if (code == BATON_OK)
        code = ranges_collect(self, manager, err);
    for (uint32_t i = 0; code == BATON_OK && i < self->range_count; i++)
        code = range_register(self, i, err);
    if (code != BATON_OK) {
        ucx_close(manager, self);
        return code;
    }
    memcpy(self->transports, list.shown, sizeof(self->transports));
    if (ucx_host->log_enabled(2))
        ucx_host->log_write(2, "ucx", "UCX %s over %s", ucp_get_version_string(),
                            self->transports);
    *state = self;
    return BATON_OK;
}

void ucx_close(struct manager *manager, void *state)
{
    struct ucx_manager *self = state;
    (void)manager;
    for (uint32_t i = 0; i < self->range_count; i++)
        if (self->handles[i])
            ucp_mem_unmap(self->context, self->handles[i]);
    if (self->context && !atomic_load_explicit(&self->kept, memory_order_acquire))
        context_close(self->context);
    free(self->handles);
    free(self->ranges);
    free(self->cell);
    free(self);
}

/* Nobody looks at these again; the list is for tools that look for what was lost. */
static struct kept_worker {
    struct kept_worker *next;
    ucp_worker_h ucp;
    ucp_context_h context;
} * kept_workers;
static pthread_mutex_t kept_lock = PTHREAD_MUTEX_INITIALIZER;

void ucx_keep(struct ucx_manager *self, ucp_worker_h ucp)
{
    struct kept_worker *kept = calloc(1, sizeof(*kept));
    atomic_store_explicit(&self->kept, true, memory_order_release);
    if (!kept)
        return;
    *kept = (struct kept_worker){.ucp = ucp, .context = self->context};
    pthread_mutex_lock(&kept_lock);
    kept->next = kept_workers;
    kept_workers = kept;
    pthread_mutex_unlock(&kept_lock);
}
