/* SPDX-License-Identifier: Apache-2.0 */
#include "up_fleet.h"

#include "subprocess.h"

#include "base/clock.h"

#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAUSE_FIRST_MS 200u
#define PAUSE_MAX_MS 10000u
#define STEADY_MS 20000u /* up for so long, and the pause begins small again */

static void child_start(struct child *child);
static void fleet_advance(struct fleet *fleet);

static void child_set(struct child *child, enum child_state state)
{
    child->state = state;
    child->used = false;
    child->fleet->options.changed(child, child->fleet->options.context);
}

struct child *fleet_router(struct fleet *fleet)
{
    return &fleet->children[fleet->count - 1];
}

/* ---- what they say -------------------------------------------------------------------------- */

static bool port_read(const char *line, const char *before, uint16_t *out)
{
    const char *at = strstr(line, before);
    const char *colon = at ? strrchr(at, before[strlen(before) - 1]) : NULL;
    unsigned long number = colon ? strtoul(colon + 1, NULL, 10) : 0;
    if (!number || number > 65535)
        return false;
    *out = (uint16_t)number;
    return true;
}

static void child_said(struct child *child, const char *line)
{
    if (port_read(line, "baton: bootstrap server on port ", &child->bootstrap_port))
        return;
    /* The number after the last colon of "listening on http://127.0.0.1:30000". */
    if (strncmp(line, "baton: listening on ", 20) == 0 &&
        port_read(line + 20, ":", &child->port)) {
        child->was_up = true;
        child->up_ns = clock_now_ns();
        child_set(child, CHILD_UP);
        fleet_advance(child->fleet);
        return;
    }
    if (strncmp(line, "baton: ", 7) == 0)
        line += 7;
    snprintf(child->last, sizeof(child->last), "%s", line);
    child->fleet->options.said(child, line, child->fleet->options.context);
}

static void output_take(struct child *child, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        bool end = bytes[i] == '\n' || bytes[i] == '\r';
        if (!end && child->line_length + 1 < sizeof(child->line))
            child->line[child->line_length++] = bytes[i];
        if (!end || !child->line_length)
            continue;
        child->line[child->line_length] = '\0';
        child->line_length = 0;
        child_said(child, child->line);
    }
}

static void output_read(struct child *child)
{
    char block[4096];
    ssize_t length;
    while (child->output >= 0 && (length = read(child->output, block, sizeof(block))) > 0)
        output_take(child, block, (size_t)length);
}

static void output_readable(evutil_socket_t fd, short what, void *context)
{
    struct child *child = context;
    char byte;
    (void)fd, (void)what;
    output_read(child);
    /* At the end of it nobody waits any more: it would be readable for ever. */
    ssize_t got = read(child->output, &byte, 1);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        event_del(child->readable);
    else if (got == 1)
        output_take(child, &byte, 1);
}

/* ---- starting ------------------------------------------------------------------------------- */

struct words {
    const char *items[FLEET_WORDS_MAX + 8 + 4 * FLEET_CHILDREN_MAX];
    uint32_t count;
    char texts[3 * FLEET_CHILDREN_MAX][64];
    uint32_t text_count;
};

static void word_add(struct words *words, const char *word)
{
    words->items[words->count++] = word;
}

__attribute__((format(printf, 2, 3))) static void text_add(struct words *words,
                                                           const char *format, ...)
{
    va_list arguments;
    char *text = words->texts[words->text_count++];
    va_start(arguments, format);
    vsnprintf(text, sizeof(words->texts[0]), format, arguments);
    va_end(arguments);
    word_add(words, text);
}

static void router_words(const struct fleet *fleet, struct words *words)
{
    word_add(words, "--host");
    word_add(words, fleet->options.host);
    for (uint32_t i = 0; i + 1 < fleet->count; i++) {
        const struct child *worker = &fleet->children[i];
        word_add(words, worker->kind == CHILD_PREFILL ? "--prefill" : "--decode");
        text_add(words, "http://127.0.0.1:%u", worker->port);
        if (worker->kind == CHILD_PREFILL)
            text_add(words, "%u", worker->bootstrap_port);
    }
}

/* By its name, so that process lists are readable; a program that was rebuilt meanwhile has none, and
 * the old one goes on. */
static const char *program_path(void)
{
    static char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    path[length > 0 ? length : 0] = '\0';
    return access(path, X_OK) == 0 ? path : "/proc/self/exe";
}

/* Must it know where the other one is? */
static bool child_needs(const struct child *child, const struct child *other)
{
    return other->kind < child->kind &&
           (child->kind == CHILD_ROUTER || child->fleet->options.decode_first);
}

static void words_make(const struct child *child, struct words *words)
{
    static const char *const commands[] = {"prefill", "decode", "router"};
    const struct fleet_options *options = &child->fleet->options;
    words->count = words->text_count = 0;
    word_add(words, program_path());
    word_add(words, commands[child->kind]);
    if (child->kind == CHILD_ROUTER)
        router_words(child->fleet, words);
    else
        word_add(words, options->model);
    word_add(words, "--port");
    text_add(words, "%u", child->port);
    if (child->kind == CHILD_PREFILL) {
        word_add(words, "--bootstrap-port");
        text_add(words, "%u", child->bootstrap_port);
    }
    for (uint32_t i = 0; i < child->fleet->count; i++) {
        const struct child *other = &child->fleet->children[i];
        if (child->kind != CHILD_DECODE || !child_needs(child, other))
            continue;
        word_add(words, "--prefill");
        text_add(words, "http://127.0.0.1:%u", other->port);
    }
    for (const char *const *word = options->words[child->kind]; *word; word++)
        word_add(words, *word);
    word_add(words, NULL);
}

static void fleet_fail(struct fleet *fleet, const struct child *child, const char *why)
{
    char problem[640];
    if (fleet->failed)
        return;
    fleet->failed = true;
    snprintf(problem, sizeof(problem), "%s could not be started: %s", child->name, why);
    fleet->options.ended(problem, fleet->options.context);
}

static void child_start(struct child *child)
{
    static struct words words; /* large, and used by one thread at a time */
    char text[256];
    words_make(child, &words);
    child->line_length = 0;
    child->last[0] = '\0';
    int rc = subprocess_start((char *const *)(uintptr_t)words.items,
                              SUBPROCESS_CAPTURE | SUBPROCESS_ERRORS | SUBPROCESS_GROUP,
                              &child->pid, &child->output, ERROR_BUFFER(text));
    if (rc) {
        child->pid = 0;
        fleet_fail(child->fleet, child, text);
        return;
    }
    fcntl(child->output, F_SETFL, fcntl(child->output, F_GETFL) | O_NONBLOCK);
    child->readable = event_new(child->fleet->options.base, child->output, EV_READ | EV_PERSIST,
                                output_readable, child);
    if (child->readable)
        event_add(child->readable, NULL);
    child_set(child, CHILD_STARTING);
}

/* Starts those who have waited for nothing but what others have said by now. */
static void fleet_advance(struct fleet *fleet)
{
    for (uint32_t i = 0; i < fleet->count && !fleet->stopping && !fleet->failed; i++) {
        struct child *child = &fleet->children[i];
        bool ready = child->state == CHILD_WAITING;
        for (uint32_t j = 0; j < fleet->count; j++)
            ready &= fleet->children[j].was_up || !child_needs(child, &fleet->children[j]);
        if (ready)
            child_start(child);
    }
}

/* ---- ends ----------------------------------------------------------------------------------- */

static void pause_over(evutil_socket_t fd, short what, void *context)
{
    struct child *child = context;
    (void)fd, (void)what;
    if (child->state == CHILD_RESTING && !child->fleet->stopping)
        child_start(child);
}

static void child_rest(struct child *child)
{
    if (child->up_ns && clock_now_ns() - child->up_ns > STEADY_MS * NS_PER_MS)
        child->pause_ms = 0;
    child->pause_ms = child->pause_ms ? child->pause_ms * 2 : PAUSE_FIRST_MS;
    if (child->pause_ms > PAUSE_MAX_MS)
        child->pause_ms = PAUSE_MAX_MS;
    child->restarts++;
    child->up_ns = 0;
    struct timeval delay = {child->pause_ms / 1000, (child->pause_ms % 1000) * 1000};
    event_add(child->pause, &delay);
    child_set(child, CHILD_RESTING);
}

static void output_close(struct child *child)
{
    output_read(child);
    if (child->readable)
        event_free(child->readable);
    child->readable = NULL;
    close(child->output);
    child->output = -1;
}

static bool fleet_is_gone(const struct fleet *fleet)
{
    for (uint32_t i = 0; i < fleet->count; i++)
        if (fleet->children[i].pid)
            return false;
    return true;
}

static void workers_end(struct fleet *fleet)
{
    for (uint32_t i = 0; i + 1 < fleet->count; i++)
        if (fleet->children[i].pid)
            kill(fleet->children[i].pid, SIGTERM);
}

static void child_ended(struct child *child, int status)
{
    struct fleet *fleet = child->fleet;
    char how[64];
    child->pid = 0;
    output_close(child);
    if (fleet->stopping) {
        child_set(child, CHILD_ENDED);
        if (child->kind == CHILD_ROUTER)
            workers_end(fleet);
        if (fleet_is_gone(fleet) && !fleet->failed)
            fleet->options.ended(NULL, fleet->options.context);
        return;
    }
    if (WIFSIGNALED(status))
        snprintf(how, sizeof(how), "it was ended by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else
        snprintf(how, sizeof(how), "it ended with status %d", WEXITSTATUS(status));
    if (!child->was_up) {
        fleet_fail(fleet, child, child->last[0] ? child->last : how);
        return;
    }
    fleet->options.said(child, how, fleet->options.context);
    child_rest(child);
}

static void child_signal(evutil_socket_t number, short what, void *context)
{
    struct fleet *fleet = context;
    int status;
    (void)number, (void)what;
    for (uint32_t i = 0; i < fleet->count; i++) {
        struct child *child = &fleet->children[i];
        if (child->pid && waitpid(child->pid, &status, WNOHANG) == child->pid)
            child_ended(child, status);
    }
}

/* ---- the fleet ------------------------------------------------------------------------------ */

static struct child *child_add(struct fleet *fleet, enum child_kind kind, const char *name,
                               uint32_t number)
{
    struct child *child = &fleet->children[fleet->count++];
    *child = (struct child){.fleet = fleet, .kind = kind, .output = -1};
    if (kind == CHILD_ROUTER)
        snprintf(child->name, sizeof(child->name), "%s", name);
    else
        snprintf(child->name, sizeof(child->name), "%s %u", name, number);
    child->pause = evtimer_new(fleet->options.base, pause_over, child);
    return child;
}

int fleet_open(const struct fleet_options *options, struct fleet *fleet, struct error err)
{
    *fleet = (struct fleet){.options = *options};
    BATON_ASSERT(options->prefill_count + options->decode_count < FLEET_CHILDREN_MAX);
    fleet->signal = evsignal_new(options->base, SIGCHLD, child_signal, fleet);
    if (!fleet->signal || event_add(fleet->signal, NULL))
        return error_set(err, BATON_ESYSTEM, "SIGCHLD cannot be watched");
    for (uint32_t i = 0; i < options->prefill_count; i++)
        child_add(fleet, CHILD_PREFILL, "prefill", i);
    for (uint32_t i = 0; i < options->decode_count; i++)
        child_add(fleet, CHILD_DECODE, "decode", i);
    child_add(fleet, CHILD_ROUTER, "router", 0)->port = options->port;
    for (uint32_t i = 0; i < fleet->count; i++)
        if (!fleet->children[i].pause)
            return error_set(err, BATON_ENOMEM, "out of memory for the fleet");
    fleet_advance(fleet);
    return BATON_OK;
}

void fleet_stop(struct fleet *fleet)
{
    struct child *router = fleet_router(fleet);
    int number = fleet->stopping ? SIGKILL : SIGTERM;
    bool first = !fleet->stopping;
    fleet->stopping = true;
    for (uint32_t i = 0; i < fleet->count; i++) {
        struct child *child = &fleet->children[i];
        event_del(child->pause);
        /* The workers go when the router, which has their clients, is gone. */
        if (child->pid && (!first || child == router || !router->pid))
            kill(child->pid, number);
    }
    if (first && fleet_is_gone(fleet) && !fleet->failed)
        fleet->options.ended(NULL, fleet->options.context);
}

void fleet_close(struct fleet *fleet)
{
    for (uint32_t i = 0; i < fleet->count; i++) {
        struct child *child = &fleet->children[i];
        if (child->pid) {
            kill(child->pid, SIGKILL);
            waitpid(child->pid, NULL, 0);
        }
        if (child->output >= 0)
            close(child->output);
        if (child->readable)
            event_free(child->readable);
        if (child->pause)
            event_free(child->pause);
    }
    if (fleet->signal)
        event_free(fleet->signal);
}
