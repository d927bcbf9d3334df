/* SPDX-License-Identifier: Apache-2.0 */
/* fail.h - the one way out when something is wrong: a line on stderr, status 1. */
#ifndef STANDIN_FAIL_H
#define STANDIN_FAIL_H

/* Who speaks in the messages; -1 before the rank is known. */
void fail_set_rank(int rank);

/* The file and its directory to remove when the process ends early, by die() or SIGTERM. */
void fail_set_cleanup(const char *file, const char *dir);

/* Removes them now, and forgets them. The directory stays when something else is in it. */
void fail_cleanup(void);

/* Makes SIGTERM and SIGINT do that and then end the process as they would have. */
void fail_catch_signals(void);

/* Prints "nccl-standin: rank R: ..." and ends the process at once: another thread may be
 * inside the profiler, so nothing is finalized, as when a real application aborts. */
void die(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

#endif
