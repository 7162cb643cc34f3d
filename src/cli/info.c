/* SPDX-License-Identifier: Apache-2.0 */
/* `baton info`: what this build can do on this machine, and why not the rest. It is the first
 * thing to ask for when a hand-over is slow or goes over another backend than expected. */
#include "cli.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

struct values {
    bool json;
};

static const struct option options[] = {
    {.name = "json",
     .type = OPTION_BOOL,
     .offset = offsetof(struct values, json),
     .help = "One JSON object instead of text"},
};

const struct command info_command = {
    .name = "info",
    .summary = "what is built in, which backends work here, and why not the others",
    .options = options,
    .option_count = sizeof(options) / sizeof(options[0]),
};

/* What the design names and this build does not have. */
static const struct missing {
    const char *name, *about;
} missing[] = {
    {"cuda_ipc", "GPU to GPU on one host; a plugin (libbaton_cuda.so) that is not built yet"},
    {"verbs", "RDMA; a plugin (libbaton_verbs.so) that is not built yet"},
    {"ucx", "RDMA and more through UCX; a plugin (libbaton_ucx.so) that is not built yet"},
};

/* A plugin that was found is in the library's own list. */
static bool backend_listed(const char *name)
{
    baton_backend_info info = {.struct_size = sizeof(info)};
    for (uint32_t i = 0; baton_backend_info_get(i, &info) == 0; i++)
        if (strcmp(info.name, name) == 0)
            return true;
    return false;
}

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
        if (!backend_listed(missing[i].name))
            printf("  %-14s %-12s %s\n", missing[i].name, "not built in", missing[i].about);
}

static void info_print(const struct machine *machine)
{
    const struct utsname *kernel = &machine->kernel;
    printf("baton %s\n\nmachine\n", baton_version());
    printf("  %-14s %s %s, %s\n", "kernel", kernel->sysname, kernel->release, kernel->machine);
    printf("  %-14s %ld\n", "cores", machine->cores);
    printf("  %-14s %.1f GB, %.1f GB available\n", "memory",
           (double)machine->memory_bytes / 1e9, (double)machine->memory_free_bytes / 1e9);
    backends_print();
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
        if (!backend_listed(missing[i].name))
            json_array_append_new(list,
                                  json_pack("{s:s, s:b, s:b, s:s, s:s}", "name",
                                            missing[i].name, "built_in", 0, "available", 0,
                                            "about", missing[i].about, "why", "not built in"));
    return list;
}

static json_t *limit_json(uint64_t value)
{
    return value > INT64_MAX ? json_null() : json_integer((json_int_t)value);
}

static int info_json(const struct machine *machine)
{
    json_t *root =
        json_pack("{s:s, s:s, s:s, s:i, s:I, s:I, s:o, s:o, s:o, s:s, s:s, s:s}", "version",
                  baton_version(), "kernel", machine->kernel.release, "architecture",
                  machine->kernel.machine, "cores", (int)machine->cores, "memory_bytes",
                  (json_int_t)machine->memory_bytes, "memory_available_bytes",
                  (json_int_t)machine->memory_free_bytes, "locked_memory_bytes",
                  limit_json(machine->locked_bytes), "open_files", limit_json(machine->files),
                  "backends", backends_json(), "huge_pages", machine->thp, "huge_pages_shared",
                  machine->shmem_thp, "ptrace_scope", machine->ptrace);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!text)
        return cli_failed("info", "out of memory");
    puts(text);
    free(text);
    return CLI_OK;
}

int info_main(int argc, char **argv)
{
    struct machine machine = {0};
    struct values values;
    int status = CLI_OK;
    if (!cli_parse(&info_command, argc, argv, &values, &status))
        return status;
    machine_read(&machine);
    if (values.json)
        return info_json(&machine);
    info_print(&machine);
    return CLI_OK;
}
