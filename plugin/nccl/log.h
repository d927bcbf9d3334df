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

#define NOTES_KEPT 12u
#define NOTES_BYTES 512u

struct notes {
	_Atomic(abi_logger) logger; /* NULL: there is none */
	_Atomic unsigned speaking;  /* threads that are in a logger, or about to be */
	const char *job;
	unsigned kept;
	char text[NOTES_KEPT][NOTES_BYTES];
};

/* Says it now. */
void notes_say(struct notes *notes, const char *text);

/* The following two want the inspector's lock. */

/* Keeps it, to be said later; what finds no room is lost. */
void notes_keep(struct notes *notes, const char *text);
/* Takes the oldest out. False: there is none. */
bool notes_take(struct notes *notes, char text[NOTES_BYTES]);

/* Waits until nobody is in a logger, at most until then (CLOCK_MONOTONIC): the former one may go now. */
void notes_wait(struct notes *notes, uint64_t due_ns);

#endif
