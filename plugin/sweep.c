/* SPDX-License-Identifier: Apache-2.0 */
#include "sweep.h"

#include "clock.h"

#define relaxed memory_order_relaxed

/* NCCL announces more channels than it reports (a Send's channels without a step): done is what stood still for long
 * with every channel that began ended. */
#define SETTLED_NS 2000000000ull
/* No kernel event at all, while that many later operations completed: it will not come (a lost start, a copy engine). */
#define OVERTAKEN_NS 10000000000ull
#define OVERTAKEN_OPS 64u
/* A hung operation is worth keeping: it goes only when the pool is nearly empty. */
#define SHORT_POOL (BOX_OPS / 4)
#define SHORT_POOL_NS 60000000000ull

/* Odd while the slot is in use. Everything read after it belongs to that use, or the claim fails. */
static uint32_t generation_of(struct box_op *op)
{
	return atomic_load_explicit(&op->generation, memory_order_acquire);
}

static uint64_t age_ns(struct track *track, _Atomic uint64_t *since, uint64_t now_tick)
{
	uint64_t then = atomic_load_explicit(since, relaxed);

	return then && then < now_tick ? clock_ticks_to_ns(now_tick - then, track->ns_per_tick_q32) : 0;
}

static void expire(struct track *track, struct box_op *op, uint32_t generation, enum box_drop reason)
{
	if (!track_claim(op, generation))
		return;
	track_drop(track, reason);
	track_free(track, op);
}

static void sweep_slot(struct sweep *sweep, struct track *track, unsigned slot, bool pool_is_short,
		       uint64_t now_tick)
{
	struct box_op *op = &track->box->ops[slot];
	uint32_t generation = generation_of(op);
	struct box_comm *comm = &track->box->comms[atomic_load_explicit(&op->comm, relaxed)];
	uint64_t started = atomic_load_explicit(&op->started_channels, relaxed);
	uint64_t stopped = atomic_load_explicit(&op->stopped_channels, relaxed);
	uint64_t channels = started ^ (stopped << 1 | stopped >> 63);
	uint64_t age = age_ns(track, &op->enqueue_tick, now_tick);
	bool app_done = atomic_load_explicit(&op->flags, memory_order_acquire) & BOX_OP_APP_DONE;

	if (!(generation & 1))
		return;
	if (sweep->seen_channels[slot] != channels || !atomic_load_explicit(&op->event_tick, relaxed)) {
		sweep->seen_channels[slot] = channels;
		atomic_store_explicit(&op->event_tick, now_tick, relaxed);
	}
	bool orphaned = atomic_load_explicit(&comm->generation, relaxed) !=
				atomic_load_explicit(&op->comm_generation, relaxed) ||
			(pool_is_short && /* what an aborted communicator left is evidence of a hang */
			 atomic_load_explicit(&comm->state, relaxed) != BOX_COMM_LIVE);
	bool overtaken = atomic_load_explicit(&comm->last_sequence, relaxed) >
			 atomic_load_explicit(&op->index, relaxed) + OVERTAKEN_OPS;

	if (app_done && started && started == stopped) {
		if (age_ns(track, &op->event_tick, now_tick) > SETTLED_NS)
			track_complete(track, op, generation);
	} else if (orphaned || (pool_is_short && !started && age > SHORT_POOL_NS)) {
		expire(track, op, generation, BOX_DROP_EXPIRED);
	} else if (app_done && !started && overtaken && age > OVERTAKEN_NS) {
		expire(track, op, generation, BOX_DROP_UNTIMED);
	}
}

void sweep_round(struct sweep *sweep, struct track *track, uint64_t now_tick)
{
	unsigned used = 0;

	for (unsigned slot = 0; slot < BOX_OPS; slot++)
		used += generation_of(&track->box->ops[slot]) & 1;
	for (unsigned slot = 0; used && slot < BOX_OPS; slot++)
		if (generation_of(&track->box->ops[slot]) & 1)
			sweep_slot(sweep, track, slot, used > BOX_OPS - SHORT_POOL, now_tick);
}
