/* SPDX-License-Identifier: Apache-2.0 */
/* hot/late.h - times that NCCL's thread read too late, so that they are another operation's.
 *
 * The kernels write when each work of a channel began and ended into a ring of 64 places, and
 * NCCL's thread takes what is in a work's place if that is not older. To 2.30 nothing shows that it
 * is of the work 64 later, or 128. But the kernels of a communicator run one after the other. So
 * the thread, while it catches up, sooner or later tells of an operation that began before an
 * earlier one ended: then all that it told since it fell behind, and that ended after that, is not
 * believed.
 *
 * Until this is known such operations are held back: their channels have ended, and they keep their
 * slots. In doubt is what ended so long after all before that 64 works may lie between, while NCCL
 * has told of many more, and what follows on such an operation. They are believed
 * - when several in a row were told just when they ended, or
 * - when NCCL has told of too few later ones: then there are no works to be mistaken for its own.
 * On a host without a free processor there may be neither for long; what finds no more room is not
 * believed then.
 *
 * Sources: NCCL 2.27 to 2.30, src/device/common.h (profiler), src/transport/profiler.cc.
 *
 * All functions want the communicator for their caller alone (hot/owner.h), but for late_new_comm.
 */
#ifndef NCCL_INSPECTOR_HOT_LATE_H
#define NCCL_INSPECTOR_HOT_LATE_H

#include "hot/state.h"

#define LATE_RING 64u /* works of a channel whose times NCCL can read */
/* No kernel is launched and over in less than a good 2 us, on any GPU. If half as long, what takes
 * 64 us is missed. */
#define LATE_GAP_NS (LATE_RING * UINT64_C(2000))
/* NCCL launches the operations of a group before it tells of them: less than a ring may be told. */
#define LATE_TOLD (LATE_RING / 2)
/* Heard of within this or LATE_PROMPT_WORKS works, an operation was told as it ended. A thread that
 * is behind has the end of the latest work in that place of the ring, which is any of the last 64.
 * So by chance it looks in time once in four times (once in two, if these are doubled); hence so
 * many in a row. */
#define LATE_PROMPT_NS INT64_C(100000)
#define LATE_PROMPT_WORKS (LATE_RING / 4)
#define LATE_IN_TIME 8u
/* The two clocks drift apart by less than 1 in 2^11: 488 ppm. */
#define LATE_DRIFT_SHIFT 11

/* Whether an operation that ended at `stop_ns` is believed at once; most are. */
static inline __attribute__((always_inline)) bool late_is_clear(struct clockmix *mix,
                                                                uint64_t stop_ns)
{
	uint64_t until = atomic_load_explicit(&mix->clear_until_ns, memory_order_relaxed);

	if (!track_likely(stop_ns <= until))
		return false;
	if (stop_ns + LATE_GAP_NS > until)
		atomic_store_explicit(&mix->clear_until_ns, stop_ns + LATE_GAP_NS,
		                      memory_order_relaxed);
	return true;
}

/* Looks at one that is not clear, and decides about those that are held. Returns whether it is held
 * back, too. Then late_next is due. */
bool late_look(struct track *track, unsigned comm, const struct box_op *op, uint32_t generation);

/* Gives a use of a slot that is held no longer, and whether its times are believed. False: there is
 * none. */
bool late_next(struct track *track, unsigned comm, uint32_t *slot, uint32_t *generation,
               bool *is_true);

/* Which of those that are held a use of a slot is, from 1; 0: it is not held. */
uint32_t late_holds(const struct track *track, unsigned comm, uint32_t slot, uint32_t generation);

/* Nobody waits for what may yet come: decides about the first ones of those that are held. Then
 * late_next is due. */
void late_settle(struct track *track, unsigned comm, uint32_t first_ones);

/* A communicator begins in that record. Under the inspector's lock. */
void late_new_comm(struct track *track, unsigned comm);

#endif
