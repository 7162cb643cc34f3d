/* SPDX-License-Identifier: Apache-2.0 */
/* Other processes: programs that a measurement needs (iperf3, the peers' scripts), and the workers and
 * the router of a fleet. Start, read, stop. */
#ifndef BATON_CLI_SUBPROCESS_H
#define BATON_CLI_SUBPROCESS_H

#include "base/error.h"

#include <sys/types.h>

#define SUBPROCESS_QUIET 1u   /* standard output and error go nowhere */
#define SUBPROCESS_CAPTURE 2u /* standard output is read by us, standard error is ours */
#define SUBPROCESS_ERRORS 4u  /* with it: standard error comes the same way */
#define SUBPROCESS_GROUP 8u   /* a process group of its own: Ctrl-C is not for it */

/* argv[0] is looked up in PATH. ENOTFOUND when there is no such program. The process dies with
 * this one. With SUBPROCESS_CAPTURE *output is the end to read from. */
int subprocess_start(char *const argv[], uint32_t flags, pid_t *pid, int *output,
                     struct error err);

/* Ends it and forgets it: TERM, then KILL after a second. */
void subprocess_stop(pid_t pid);

/* Runs it to its end, or to the timeout (then it is stopped, and ETIMEOUT comes
 * back with what was printed so far). *text is NUL-terminated and the caller's to free; *status
 * is the exit status, or 128 and the signal. */
int subprocess_capture(char *const argv[], uint32_t timeout_ms, char **text, int *status,
                       struct error err);

#endif
