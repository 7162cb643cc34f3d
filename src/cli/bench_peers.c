/* SPDX-License-Identifier: Apache-2.0 */
/* Calls bench/run_peers.sh and reads what it prints: one JSON object per peer and transport. A
 * peer that cannot be installed or fails is a line that says so, never the end of our run. */
#include "bench_peers.h"

#include "subprocess.h"

#include <inttypes.h>
#include <jansson.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PEERS_TIMEOUT_MS 900000

/* Places where bench/ is, seen from the program: a build folder in the tree, or an
 * installation. */
static const char *const places[] = {"bench", "../bench", "../../bench",
                                     "../share/baton/bench"};

static bool script_is_in(const char *directory, char *path, size_t size)
{
    int length = snprintf(path, size, "%s/run_peers.sh", directory);
    return length > 0 && (size_t)length < size && access(path, R_OK) == 0;
}

static int script_find(const char *directory, char *path, size_t size, struct error err)
{
    char program[PATH_MAX], candidate[PATH_MAX + 32];
    if (directory && script_is_in(directory, path, size))
        return BATON_OK;
    if (directory)
        return error_set(err, BATON_ENOTFOUND, "there is no run_peers.sh in %s", directory);
    if (script_is_in("bench", path, size))
        return BATON_OK;
    ssize_t length = readlink("/proc/self/exe", program, sizeof(program) - 1);
    program[length > 0 ? length : 0] = '\0';
    const char *folder = dirname(program);
    for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
        snprintf(candidate, sizeof(candidate), "%s/%s", folder, places[i]);
        if (script_is_in(candidate, path, size))
            return BATON_OK;
    }
    return error_set(
        err, BATON_ENOTFOUND,
        "run_peers.sh is neither in bench/ nor beside the program: --peers-dir DIR");
}

static void text_copy(char *out, size_t size, const char *text)
{
    snprintf(out, size, "%s", text ? text : "");
}

static bool figure_read(const char *line, struct peer_figure *out)
{
    json_t *root = json_loads(line, 0, NULL);
    if (!json_is_object(root)) {
        json_decref(root);
        return false;
    }
    *out = (struct peer_figure){0};
    text_copy(out->peer, sizeof(out->peer), json_string_value(json_object_get(root, "peer")));
    text_copy(out->transport, sizeof(out->transport),
              json_string_value(json_object_get(root, "transport")));
    text_copy(out->problem, sizeof(out->problem),
              json_string_value(json_object_get(root, "error")));
    out->seconds = json_number_value(json_object_get(root, "seconds"));
    out->best_seconds = json_number_value(json_object_get(root, "best_seconds"));
    out->gbps = json_number_value(json_object_get(root, "gbps"));
    out->operations = (uint64_t)json_integer_value(json_object_get(root, "operations"));
    out->verified = json_is_true(json_object_get(root, "verified"));
    json_decref(root);
    return out->peer[0] != '\0';
}

static void figures_read(char *text, struct peer_figures *out)
{
    char *rest = NULL;
    out->count = 0;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        if (out->count < PEER_FIGURES_MAX && figure_read(line, &out->items[out->count]))
            out->count++;
}

int peers_run(const char *directory, const struct bench_case *work, uint32_t iterations,
              struct peer_figures *out, struct error err)
{
    char script[PATH_MAX + 64], item_bytes[32], pages[16], layers[16], rounds[16];
    char *text = NULL;
    int status = 0;
    /* The page-major pool is one layer of larger pages to whoever only sees addresses. */
    uint32_t bases = 0;
    uint64_t bytes = 0;
    int rc = script_find(directory, script, sizeof(script), err);
    if (rc)
        return rc;
    bench_case_items(work, &bases, &bytes);
    snprintf(item_bytes, sizeof(item_bytes), "%" PRIu64, bytes);
    snprintf(pages, sizeof(pages), "%u", work->pages);
    snprintf(layers, sizeof(layers), "%u", bases);
    snprintf(rounds, sizeof(rounds), "%u", iterations);
    char *const argv[] = {"sh",       script, "--item-bytes", item_bytes, "--pages", pages,
                          "--layers", layers, "--iterations", rounds,     NULL};
    rc = subprocess_capture(argv, PEERS_TIMEOUT_MS, &text, &status, err);
    if (text)
        figures_read(text, out);
    free(text);
    if (rc || out->count)
        return rc;
    return error_set(err, BATON_ENOTFOUND, "run_peers.sh ended with status %d and no figure",
                     status);
}

double peers_best(const struct peer_figures *figures, const char *peer, bool tcp)
{
    double best = 0;
    for (uint32_t i = 0; i < figures->count; i++) {
        const struct peer_figure *figure = &figures->items[i];
        bool is_tcp = strcmp(figure->transport, "tcp") == 0;
        if (strcmp(figure->peer, peer) == 0 && is_tcp == tcp && figure->gbps > best)
            best = figure->gbps;
    }
    return best;
}
