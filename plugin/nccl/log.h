/* SPDX-License-Identifier: Apache-2.0 */
/* nccl/log.h - messages to the user, through the logger of a living libnccl.
 *
 * A logger may block (a pipe that nobody reads), so nobody calls it with a lock held: a message
 * that comes up under the lock is kept until the lock is let go. The logger is a function of
 * libnccl: before that may be unloaded, we wait for the threads in it.
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

/* Logs it now, if there is a logger. Any thread that holds no lock. */
void log_say(struct log *log, const char *text);

/* Keeps it, to be logged later; if there is no room it is lost. Under the inspector's lock. */
void log_keep(struct log *log, const char *text);

/* Takes the oldest kept message out. False: there is none. Under the inspector's lock. */
bool log_take(struct log *log, char text[LOG_BYTES]);

/* Waits until no thread is in a logger, at most until `due_ns` (CLOCK_MONOTONIC): then the former
 * logger may go. */
void log_wait(struct log *log, uint64_t due_ns);

#endif
