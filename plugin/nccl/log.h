/* SPDX-License-Identifier: Apache-2.0 */
/* nccl/log.h - what there is to be said to the user, through the logger of a living libnccl.
 *
 * A logger may block (a pipe that nobody reads), so nobody calls it with a lock held: what comes up under the lock is
 * kept until it is let go. It is a function of libnccl: before that is unloaded, those who are in it are waited for.
 */
#ifndef NCCL_INSPECTOR_NCCL_LOG_H
#define NCCL_INSPECTOR_NCCL_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "nccl/abi.h"

#define LOG_KEPT 12u
#define LOG_BYTES 512u

struct log {
	_Atomic(abi_logger) logger; /* NULL: there is none */
	_Atomic unsigned speaking;  /* threads that are in a logger, or about to be */
	const char *job;
	unsigned kept;
	char text[LOG_KEPT][LOG_BYTES];
};

/* Says it now. */
void log_say(struct log *log, const char *text);

/* The following two want the inspector's lock. */

/* Keeps it, to be said later; what finds no room is lost. */
void log_keep(struct log *log, const char *text);
/* Takes the oldest out. False: there is none. */
bool log_take(struct log *log, char text[LOG_BYTES]);

/* Waits until nobody is in a logger, at most until then (CLOCK_MONOTONIC): the former one may go now. */
void log_wait(struct log *log, uint64_t due_ns);

#endif
