/* SPDX-License-Identifier: Apache-2.0 */
#include "upkeep/queue.h"

#define relaxed memory_order_relaxed
#define STANDING_LOOKS 120u /* rounds: a longer wait is a hang */
#define LOOK_NS_MAX 2000000000ull

void queue_note_progress(struct queue *queue, struct box *box, uint64_t now_tick)
{
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++) {
		uint64_t completed = atomic_load_explicit(&box->comms[i].completed, relaxed);

		/* A record that serves another communicator may come to the number that the last
		 * one had. */
		if (completed &&
		    (completed != queue->completed[i] ||
		     !atomic_load_explicit(&box->comms[i].last_progress_tick, relaxed)))
			atomic_store_explicit(&box->comms[i].last_progress_tick, now_tick, relaxed);
		queue->moves[i] = completed > queue->completed[i];
		queue->completed[i] = completed;
		queue->looks[i]++;
	}
}

/* How many operations are in the GPU's queue is looked at now and then; times the time that gives
 * how long they are there, without a clock in any call. What was overtaken gets no kernel event. */
static void look_at_queues(struct queue *queue, struct track *track, uint64_t past_ns)
{
	bool found[BOX_KEYS] = { false };

	for (unsigned slot = 0; slot < BOX_OPS; slot++) {
		struct box_op *op = &track->ops[slot];
		uint32_t generation = atomic_load_explicit(&op->generation, memory_order_acquire);

		if (!track_in_use(generation))
			continue;
		/* Acquired, so that the generation is looked at again behind them. */
		uint32_t comm =
		    atomic_load_explicit(&op->comm, memory_order_acquire) % BOX_LIVE_COMMS;
		uint32_t key = atomic_load_explicit(&op->key, memory_order_acquire);
		uint64_t index = atomic_load_explicit(&op->index, memory_order_acquire);
		uint64_t started =
		    atomic_load_explicit(&op->started_channels, memory_order_acquire);

		if (started ||
		    index <=
		        atomic_load_explicit(&track->box->comms[comm].last_sequence, relaxed) ||
		    atomic_load_explicit(&op->generation, relaxed) != generation ||
		    !keys_of_comm(track->box, key, comm))
			continue;
		queue->queued_ns[key] += past_ns;
		queue->found[key] += !found[key];
		found[key] = true;
	}
}

/* What looks found counts once its communicator moves: what never does is a hang and no queue. */
static void count_queues(struct queue *queue, struct box *box)
{
	for (unsigned i = 0; i < BOX_KEYS; i++) {
		struct box_key *key = &box->keys[i];
		bool used = atomic_load_explicit(&key->used, memory_order_acquire) == 1 &&
		            key->comm < BOX_LIVE_COMMS;

		if (used && queue->moves[key->comm]) {
			atomic_fetch_add_explicit(&key->queued_ns, queue->queued_ns[i], relaxed);
			atomic_fetch_add_explicit(&key->queued_looks, queue->found[i], relaxed);
		}
		if (!used || queue->moves[key->comm] || queue->looks[key->comm] >= STANDING_LOOKS)
			queue->queued_ns[i] = queue->found[i] = 0;
	}
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++) {
		if (queue->moves[i])
			atomic_fetch_add_explicit(&box->comms[i].looks, queue->looks[i], relaxed);
		if (queue->moves[i] || queue->looks[i] >= STANDING_LOOKS ||
		    atomic_load_explicit(&box->comms[i].state, relaxed) != BOX_COMM_LIVE)
			queue->looks[i] = 0;
	}
}

void queue_round(struct queue *queue, struct track *track, uint64_t past_ns, bool any)
{
	/* A process that stood still as a whole was not looked at meanwhile. */
	if (any)
		look_at_queues(queue, track, past_ns < LOOK_NS_MAX ? past_ns : LOOK_NS_MAX);
	count_queues(queue, track->box);
}
