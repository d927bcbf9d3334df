/* SPDX-License-Identifier: Apache-2.0 */
/* upkeep/queue.h - how long operations wait in the GPU's queue, from the call to their kernel's
 * begin.
 *
 * Once a second the beat looks how many operations are in the queue. Their number times the time
 * since the look before gives how long they were there, without a clock in any call (struct
 * box_key.queued_ns).
 */
#ifndef NCCL_INSPECTOR_UPKEEP_QUEUE_H
#define NCCL_INSPECTOR_UPKEEP_QUEUE_H

#include "hot/state.h"

struct queue {
	uint64_t completed[BOX_LIVE_COMMS]; /* one round ago */
	bool moves[BOX_LIVE_COMMS];         /* something has completed since then */
	/* Of the rounds since a communicator last moved: their number, and what they found of each
	 * key. */
	uint32_t looks[BOX_LIVE_COMMS], found[BOX_KEYS];
	uint64_t queued_ns[BOX_KEYS];
};

/* Sees which communicators have moved since the round before, and keeps
 * box_comm.last_progress_tick. By the beat, before queue_round. */
void queue_note_progress(struct queue *queue, struct box *box, uint64_t now_tick);

/* Looks at the slots, of which some are in use (`any`), and adds what was found to the keys.
 * `past_ns`: since the look before. By the beat, while nothing is folded. */
void queue_round(struct queue *queue, struct track *track, uint64_t past_ns, bool any);

#endif
