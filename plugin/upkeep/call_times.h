/* SPDX-License-Identifier: Apache-2.0 */
/* upkeep/call_times.h - about when each operation was called, without a clock in any call.
 *
 * Several times a second the beat notes how many operations of each communicator have been called.
 * So an operation was called between two of these rounds, the first one that counted it and the one
 * before. All functions want the inspector's lock.
 */
#ifndef NCCL_INSPECTOR_UPKEEP_CALL_TIMES_H
#define NCCL_INSPECTOR_UPKEEP_CALL_TIMES_H

#include "hot/state.h"

#define CALL_ROUNDS 64u /* that are remembered: 16 s of rounds of a quarter of a second */

struct call_times {
	unsigned rounds;                                            /* noted so far; wraps */
	uint64_t before_tick[CALL_ROUNDS], after_tick[CALL_ROUNDS]; /* the counting was between */
	uint32_t called[CALL_ROUNDS][BOX_LIVE_COMMS];               /* low 32 bits */
};

/* Counts what has been called by now. By the beat. */
void call_times_note(struct call_times *times, const struct track *track);

/* A record of struct box_comm is about to serve another communicator, whose count begins anew. */
void call_times_forget(struct call_times *times, unsigned comm);

/* Finds when the operation with that place among those of its communicator (low 32 bits) was
 * called: after *least_tick (0: before all rounds that are remembered) and before *most_tick.
 * Returns false if no round has counted it. */
bool call_times_find(const struct call_times *times, unsigned comm, uint32_t order,
                     uint64_t *least_tick, uint64_t *most_tick);

#endif
