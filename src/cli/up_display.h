/* SPDX-License-Identifier: Apache-2.0 */
/* What a person sees of a fleet: on a terminal one line per process, kept at the bottom and redrawn;
 * otherwise a line whenever something changes. All of it on stderr: stdout is for the answer. */
#ifndef BATON_CLI_UP_DISPLAY_H
#define BATON_CLI_UP_DISPLAY_H

#include "up_fleet.h"

struct display {
    struct fleet *fleet;
    bool live;      /* a terminal */
    bool hidden;    /* something else is being printed there */
    uint32_t drawn; /* lines that stand there now */
};

void display_open(struct display *display, struct fleet *fleet);
void display_line(struct display *display, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void display_changed(struct display *display, const struct child *child);
void display_draw(struct display *display);
void display_hide(struct display *display);
void display_show(struct display *display);

#endif
