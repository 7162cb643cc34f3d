/* SPDX-License-Identifier: Apache-2.0 */
#include "up_display.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void display_open(struct display *display, struct fleet *fleet)
{
    const char *terminal = getenv("TERM");
    *display = (struct display){.fleet = fleet};
    display->live = isatty(STDERR_FILENO) && terminal && strcmp(terminal, "dumb") != 0;
}

static const char *state_text(const struct child *child)
{
    switch (child->state) {
    case CHILD_WAITING: return "waits for the workers";
    case CHILD_STARTING: return "starting";
    case CHILD_RESTING: return "gone, will be started again";
    case CHILD_ENDED: return "ended";
    case CHILD_UP: return child->kind == CHILD_ROUTER || child->used ? "up" : "listening";
    }
    return "";
}

static void child_draw(const struct child *child)
{
    char address[64] = "";
    if (child->port)
        snprintf(address, sizeof(address), "%s:%u",
                 child->kind == CHILD_ROUTER ? child->fleet->options.host : "127.0.0.1",
                 child->port);
    fprintf(stderr, "\033[2K  %-11s %-22s %-10s", child->name, address, state_text(child));
    if (child->state == CHILD_UP && child->kind != CHILD_ROUTER)
        fprintf(stderr, " %4u in flight %7" PRIu64 " requests", child->in_flight,
                child->requests);
    if (child->restarts)
        fprintf(stderr, "  started again %u time%s", child->restarts,
                child->restarts == 1 ? "" : "s");
    fputc('\n', stderr);
}

static void display_erase(struct display *display)
{
    if (display->drawn)
        fprintf(stderr, "\033[%uA\033[J", display->drawn);
    display->drawn = 0;
}

void display_draw(struct display *display)
{
    if (!display->live || display->hidden)
        return;
    if (display->drawn)
        fprintf(stderr, "\033[%uA", display->drawn);
    display->drawn = display->fleet->count;
    fputs("\033[?7l", stderr); /* a line that wraps on a narrow terminal would count as two */
    for (uint32_t i = 0; i < display->fleet->count; i++)
        child_draw(&display->fleet->children[i]);
    fputs("\033[?7h", stderr);
    fflush(stderr);
}

void display_line(struct display *display, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    display_erase(display);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    display_draw(display);
}

void display_changed(struct display *display, const struct child *child)
{
    if (display->live)
        display_draw(display);
    else if (child->port && child->state == CHILD_UP)
        display_line(display, "%s: listening on port %u (pid %d)", child->name, child->port,
                     (int)child->pid);
    else
        display_line(display, "%s: %s", child->name, state_text(child));
}

void display_hide(struct display *display)
{
    display_erase(display);
    fflush(stderr);
    display->hidden = true;
}

void display_show(struct display *display)
{
    display->hidden = false;
    display_draw(display);
}
