/* SPDX-License-Identifier: Apache-2.0 */
/* The figures of `baton bench serve`, for people and as JSON. */
#ifndef BATON_CLI_SERVE_REPORT_H
#define BATON_CLI_SERVE_REPORT_H

#include "serve_load.h"

#include <stdio.h>

void serve_report_print(struct serve_result *result, FILE *out);
/* One object; `settings` is what was asked for, in JSON. */
int serve_report_json(struct serve_result *result, const char *settings, const char *path,
                      struct error err);

#endif
