/* SPDX-License-Identifier: Apache-2.0 */
/* `baton info`: what this build can do on this machine, and why not the rest. It is the first
 * thing to ask for when a hand-over is slow or goes over another backend than expected. */
#include "cli.h"

#include "info_devices.h"
#include "info_peer.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

struct values {
    bool json;
    const char *ib_device, *peer, *peer_rank, *backends, *key_file;
    const char *tls_certificate, *tls_key, *tls_ca;
    uint32_t rank, peer_dp, peer_pp;
};

#define TEXT(text, field, word, words)                                                 \
    {                                                                                  \
        .name = text, .type = OPTION_STRING, .offset = offsetof(struct values, field), \
        .value = word, .help = words                                                   \
    }
#define NUMBER(text, field, words)                                                  \
    {                                                                               \
        .name = text, .type = OPTION_U32, .offset = offsetof(struct values, field), \
        .value = "N", .initial = "0", .help = words                                 \
    }

static const struct option options[] = {
    {.name = "json",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, json),
     .help = "One JSON object instead of text"},
    TEXT("ib-device", ib_device, "LIST",
         "RDMA devices as a manager would get them in ib_device. Without it: BATON_IB_DEVICE, "
         "or the fastest ports that are up"),
    NUMBER("rank", rank, "Our rank, for a --ib-device that names devices per rank"),
    TEXT("peer", peer, "HOST:PORT",
         "Ask the prefill rank that listens there by which backend it would send its pages to "
         "this machine. Nothing is handed over"),
    TEXT("peer-rank", peer_rank, "N",
         "--peer is a bootstrap server: ask this tensor-parallel rank behind it"),
    NUMBER("peer-dp-rank", peer_dp, "and of this data-parallel group"),
    NUMBER("peer-pp-rank", peer_pp, "and of this pipeline stage"),
    TEXT("backends", backends, "B,..",
         "Backends in our order of preference, for --peer. Without it: BATON_BACKENDS, or the "
         "usual order"),
    TEXT(
        "key-file", key_file, "FILE",
        "Its first line is the shared key, for --peer (a key on the command line could be seen "
        "by every user)"),
    TEXT("tls-certificate", tls_certificate, "FILE", "For --peer: all three, or none"),
    TEXT("tls-key", tls_key, "FILE", "The certificate's key"),
    TEXT("tls-ca", tls_ca, "FILE", "Who must have signed the peer's certificate"),
};

const struct command info_command = {
    .name = "info",
    .summary = "what is built in, which devices and backends work here, and why not the others",
    .text = "  baton info\n"
            "  baton info --ib-device 'mlx5_0,mlx5_1:1:3'\n"
            "  baton info --peer 10.0.0.7:41234\n"
            "  baton info --peer 10.0.0.7:8998 --peer-rank 0 --backends verbs,tcp",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

/* What the design names and no build has yet. */
static const struct missing {
    const char *name, *about;
} missing[] = {
    {"cuda_ipc", "GPU to GPU on one host; a plugin (libbaton_cuda.so) that is not built yet"},
};

struct machine {
    struct utsname kernel;
    long cores;
    uint64_t memory_bytes, memory_free_bytes;
    uint64_t locked_bytes; /* UINT64_MAX: no limit */
    uint64_t files;
    char thp[64], shmem_thp[64], ptrace[128];
};

/* The first line of a small file of the kernel's; false when there is none. */
static bool line_read(const char *path, char *line, size_t size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    bool read = fgets(line, (int)size, file) != NULL;
    fclose(file);
    if (read)
        line[strcspn(line, "\n")] = '\0';
    return read;
}

/* "always [madvise] never" -> "madvise" */
static void choice_read(const char *path, char *out, size_t size)
{
    char line[128];
    const char *begin, *end = NULL;
    snprintf(out, size, "unknown");
    if (!line_read(path, line, sizeof(line)) || !(begin = strchr(line, '[')))
        return;
    end = strchr(begin, ']');
    if (end)
        snprintf(out, size, "%.*s", (int)(end - begin - 1), begin + 1);
}

static uint64_t meminfo_read(const char *name)
{
    char line[128];
    uint64_t kilobytes = 0;
    FILE *file = fopen("/proc/meminfo", "re");
    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, name, strlen(name)) == 0)
            sscanf(line + strlen(name), ": %" SCNu64, &kilobytes);
    if (file)
        fclose(file);
    return kilobytes * 1024;
}

static void ptrace_read(char *out, size_t size)
{
    static const char *const meaning[] = {
        "0: processes of one user may read each other",
        "1: only a parent may read; cma needs CAP_SYS_PTRACE or prctl(PR_SET_PTRACER)",
        "2: only with CAP_SYS_PTRACE", "3: nobody may"};
    char line[16];
    if (!line_read("/proc/sys/kernel/yama/ptrace_scope", line, sizeof(line)))
        snprintf(out, size, "not restricted (no Yama)");
    else if (line[0] >= '0' && line[0] <= '3')
        snprintf(out, size, "%s", meaning[line[0] - '0']);
    else
        snprintf(out, size, "%s", line);
}

static uint64_t limit_read(int resource)
{
    struct rlimit limit;
    if (getrlimit((__rlimit_resource_t)resource, &limit) || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

static void machine_read(struct machine *machine)
{
    uname(&machine->kernel);
    machine->cores = sysconf(_SC_NPROCESSORS_ONLN);
    machine->memory_bytes = meminfo_read("MemTotal");
    machine->memory_free_bytes = meminfo_read("MemAvailable");
    machine->locked_bytes = limit_read(RLIMIT_MEMLOCK);
    machine->files = limit_read(RLIMIT_NOFILE);
    choice_read("/sys/kernel/mm/transparent_hugepage/enabled", machine->thp,
                sizeof(machine->thp));
    choice_read("/sys/kernel/mm/transparent_hugepage/shmem_enabled", machine->shmem_thp,
                sizeof(machine->shmem_thp));
    ptrace_read(machine->ptrace, sizeof(machine->ptrace));
}

/* ---- text -------------------------------------------------------------------------------- */

static void limit_print(const char *name, uint64_t value, uint64_t unit, const char *unit_name,
                        const char *about)
{
    char text[64];
    if (value == UINT64_MAX)
        snprintf(text, sizeof(text), "no limit");
    else
        snprintf(text, sizeof(text), "%" PRIu64 "%s", value / unit, unit_name);
    printf("  %-14s %-12s %s\n", name, text, about);
}

static void backends_print(void)
{
    baton_backend_info info = {.struct_size = sizeof(info)};
    printf("\nbackends, in order of preference\n");
    for (uint32_t i = 0; baton_backend_info_get(i, &info) == 0; i++) {
        printf("  %-14s %-12s %s\n", info.name, info.available ? "works here" : "not here",
               info.about);
        if (!info.available)
            printf("  %-14s %-12s because %s\n", "", "", info.why);
    }
    for (size_t i = 0; i < sizeof(missing) / sizeof(missing[0]); i++)
        printf("  %-14s %-12s %s\n", missing[i].name, "not built in", missing[i].about);
}

static void info_print(const struct machine *machine, const struct values *values)
{
    const struct utsname *kernel = &machine->kernel;
    printf("baton %s\n\nmachine\n", baton_version());
    printf("  %-14s %s %s, %s\n", "kernel", kernel->sysname, kernel->release, kernel->machine);
    printf("  %-14s %ld\n", "cores", machine->cores);
    printf("  %-14s %.1f GB, %.1f GB available\n", "memory",
           (double)machine->memory_bytes / 1e9, (double)machine->memory_free_bytes / 1e9);
    backends_print();
    devices_print(values->ib_device, values->rank);
    printf("\nlimits that matter\n");
    limit_print("locked memory", machine->locked_bytes, 1024, " KB",
                "RDMA registration needs as much as the pool (ulimit -l)");
    limit_print("open files", machine->files, 1, "",
                "one or more per peer and stream (ulimit -n)");
    printf("  %-14s %-12s of private memory; pools that are madvised\n", "huge pages",
           machine->thp);
    printf("  %-14s %-12s of shared memory (baton_pool_alloc)\n", "", machine->shmem_thp);
    printf("  %-14s %s\n", "ptrace scope", machine->ptrace);
}

/* ---- JSON -------------------------------------------------------------------------------- */

static json_t *backends_json(void)
{
    baton_backend_info info = {.struct_size = sizeof(info)};
    json_t *list = json_array();
    for (uint32_t i = 0; baton_backend_info_get(i, &info) == 0; i++)
        json_array_append_new(list, json_pack("{s:s, s:b, s:b, s:s, s:s}", "name", info.name,
                                              "built_in", 1, "available", (int)info.available,
                                              "about", info.about, "why", info.why));
    for (size_t i = 0; i < sizeof(missing) / sizeof(missing[0]); i++)
        json_array_append_new(
            list, json_pack("{s:s, s:b, s:b, s:s, s:s}", "name", missing[i].name, "built_in", 0,
                            "available", 0, "about", missing[i].about, "why", "not built in"));
    return list;
}

static json_t *limit_json(uint64_t value)
{
    return value > INT64_MAX ? json_null() : json_integer((json_int_t)value);
}

static int json_out(json_t *root)
{
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text)
        return cli_failed("info", "out of memory");
    puts(text);
    free(text);
    return CLI_OK;
}

static int info_json(const struct machine *machine, const struct values *values)
{
    return json_out(
        json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:o, s:o, s:o, s:o, s:s, s:s, s:s}",
                  "version", baton_version(), "kernel", machine->kernel.release, "architecture",
                  machine->kernel.machine, "cores", (int)machine->cores, "memory_bytes",
                  (json_int_t)machine->memory_bytes, "memory_available_bytes",
                  (json_int_t)machine->memory_free_bytes, "locked_memory_bytes",
                  limit_json(machine->locked_bytes), "open_files", limit_json(machine->files),
                  "backends", backends_json(), "rdma",
                  devices_json(values->ib_device, values->rank), "huge_pages", machine->thp,
                  "huge_pages_shared", machine->shmem_thp, "ptrace_scope", machine->ptrace));
}

/* ---- a peer ------------------------------------------------------------------------------ */

static int peer_main(const struct values *values)
{
    char key[256] = "", text[512];
    struct peer_answer answer;
    struct peer_question question = {
        .address = values->peer,
        .peer_rank = values->peer_rank,
        .peer_dp = values->peer_dp,
        .peer_pp = values->peer_pp,
        .rank = values->rank,
        .ib_device = values->ib_device,
        .backends = values->backends,
        .key = key,
        .tls_certificate = values->tls_certificate,
        .tls_key = values->tls_key,
        .tls_ca = values->tls_ca,
    };
    if (values->key_file && (!line_read(values->key_file, key, sizeof(key)) || !key[0])) {
        snprintf(text, sizeof(text), "there is no key in %s", values->key_file);
        return cli_failed("info", text);
    }
    if (peer_ask(&question, &answer, ERROR_BUFFER(text)))
        return cli_failed("info --peer", text);
    if (values->json)
        return json_out(peer_json(&answer));
    peer_print(&answer);
    return CLI_OK;
}

int info_main(int argc, char **argv)
{
    struct machine machine = {0};
    struct values values;
    int status = CLI_OK;
    if (!cli_parse(&info_command, argc, argv, &values, &status))
        return status;
    if (values.peer)
        return peer_main(&values);
    machine_read(&machine);
    if (values.json)
        return info_json(&machine, &values);
    info_print(&machine, &values);
    return CLI_OK;
}
