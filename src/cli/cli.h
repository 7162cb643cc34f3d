/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands: each is a table of options and a function, in a file of its own. */
#ifndef BATON_CLI_CLI_H
#define BATON_CLI_CLI_H

#include "base/options.h"

/* What a process returns to its shell. */
enum cli_exit { CLI_OK = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

/* Parses into values. False: there is nothing more to do, *status is what to return (help was
 * printed, or what was wrong with the command line). */
bool cli_parse(const struct command *command, int argc, char **argv, void *values, int *status);
/* The same for a command that takes operands. */
bool cli_parse_operands(const struct command *command, int argc, char **argv, void *values,
                        struct option_operands *operands, int *status);

/* "baton: what: sentence" on stderr; returns CLI_FAILED. */
int cli_failed(const char *what, const char *sentence);

extern const struct command bench_transfer_command, bench_poll_command, bench_death_command;
extern const struct command bench_order_command, bench_engine_command, bench_serve_command;
extern const struct command bench_logits_command;
extern const struct command info_command, demo_command, bootstrap_command;
extern const struct command serve_command, prefill_command, decode_command, run_command;
extern const struct command router_command, up_command;

int bench_transfer_main(int argc, char **argv);
int bench_poll_main(int argc, char **argv);
int bench_death_main(int argc, char **argv);
int bench_order_main(int argc, char **argv);
int bench_engine_main(int argc, char **argv);
int bench_serve_main(int argc, char **argv);
int bench_logits_main(int argc, char **argv);
int info_main(int argc, char **argv);
int demo_main(int argc, char **argv);
int bootstrap_main(int argc, char **argv);
int serve_main(int argc, char **argv);
int prefill_main(int argc, char **argv);
int decode_main(int argc, char **argv);
int run_main(int argc, char **argv);
int router_main(int argc, char **argv);
int up_main(int argc, char **argv);

#endif
