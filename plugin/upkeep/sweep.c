/* SPDX-License-Identifier: Apache-2.0 */
#include "upkeep/sweep.h"

#include "base/clock.h"
#include "hot/atomics.h"
#include "hot/channels.h"
#include "hot/clockmix.h"
#include "hot/complete.h"
#include "hot/groups.h"
#include "hot/keys.h"
#include "hot/reclaim.h"
#include "hot/slots.h"
#include "nccl/event.h"

#define relaxed memory_order_relaxed

/* NCCL announces more channels of a Send than it reports (those without a step), and none of some
 * collectives: done is what stood still for long with every channel that began ended. Of any other,
 * channels that have yet to begin may be what it hangs in: it is done only if many later ones are
 * over. */
#define SETTLED_NS 2000000000ull
/* No kernel event at all, while later operations completed: it will not come (a lost start, a part
 * without work). */
#define OVERTAKEN_NS 3000000000ull
/* A hung operation is worth keeping: it goes only when the pool is nearly empty. */
/* Free slots that are everybody's, or of a communicator's share. */
#define SHORT_POOL ((BOX_OPS - SLOTS_SHARED) / 4)
#define SHORT_POOL_NS 60000000000ull

/* Everything read after it belongs to that use, or ending it fails. */
static uint32_t generation_of(struct box_op *op)
{
	return atomic_load_explicit(&op->generation, memory_order_acquire);
}

static uint64_t age_ns(struct track *track, _Atomic uint64_t *since, uint64_t now_tick)
{
	uint64_t then = atomic_load_explicit(since, relaxed);

	return then && then < now_tick ? clock_ticks_to_ns(now_tick - then, track->ns_per_tick_q32)
	                               : 0;
}

/* Seen for the first time: the hot path reads no clock. */
static void stamp(struct track *track, struct box_op *op, uint32_t generation, uint64_t now_tick)
{
	uint64_t none = 0;

	if (atomic_load_explicit(&op->known_tick, relaxed))
		return;
	atomic_compare_exchange_strong(&op->enqueue_tick, &none, now_tick);
	/* An exchange, so that it is seen before the generation is looked at. */
	atomic_exchange(&op->known_tick, atomic_load_explicit(&track->sweep_tick, relaxed));
	/* Another operation has the slot by now: it is younger than either time says. */
	if (atomic_load(&op->generation) != generation)
		atomic_store_explicit(&op->known_tick, 0, relaxed);
}

/* Whether its slot is worth more than what may yet come: it never began, or NCCL lost the end of a
 * channel. */
static bool is_stuck(struct track *track, struct box_op *op, uint64_t age, uint64_t now_tick)
{
	if (!atomic_load_explicit(&op->started_channels, relaxed))
		return age > SHORT_POOL_NS;
	return age_ns(track, &op->event_tick, now_tick) > SHORT_POOL_NS &&
	       reclaim_is_left_behind(track, op);
}

/* Whether it has no kernel event though a later kernel of its communicator is over: to 2.30 NCCL
 * may tell the end of a kernel without its begin. */
static bool is_passed(const struct track *track, const struct box_op *op)
{
	const struct clockmix *mix =
	    &track->mixes[atomic_load_explicit(&op->comm, relaxed) % BOX_LIVE_COMMS];

	return !atomic_load_explicit(&op->started_channels, relaxed) &&
	       clockmix_is_later(atomic_load_explicit(&mix->plan, relaxed),
	                         clockmix_plan(atomic_load_explicit(&op->group, relaxed)));
}

/* Whether its channels are such as NCCL does not announce. */
static bool is_untold(const struct track *track, const struct box_op *op)
{
	uint32_t comm = atomic_load_explicit(&op->comm, relaxed) % BOX_LIVE_COMMS;
	uint32_t algo = atomic_load_explicit(&op->kind, relaxed) >> 8 & 0xff;

	return channels_untold(algo, track->box->comms[comm].nnodes);
}

static bool may_settle(const struct track *track, const struct box_op *op)
{
	uint32_t channels = atomic_load_explicit(&op->kind, relaxed) >> 24;
	bool is_expected =
	    is_untold(track, op) &&
	    channels == channels_expected(&track->channels, atomic_load_explicit(&op->key, relaxed),
	                                  atomic_load_explicit(&op->bytes, relaxed));

	return is_expected || channels == EVENT_CHANNELS_UNKNOWN ||
	       track->options.timing == BOX_TIMING_CPU ||
	       atomic_load_explicit(&op->peer, relaxed) != EVENT_NO_PEER ||
	       reclaim_is_left_behind(track, op);
}

/* What is still is over; how many channels came is learned where NCCL does not say. */
static void settle(struct track *track, struct box_op *op, uint32_t generation, uint64_t stopped)
{
	uint32_t key = atomic_load_explicit(&op->key, relaxed);
	bool is_lesson = is_untold(track, op) && !keys_is_shared(key);
	uint64_t bytes = atomic_load_explicit(&op->bytes, relaxed);

	if (track_settle(track, op, generation, TRACK_SLOT_RESTS) && is_lesson)
		channels_learn(&track->channels, key, bytes,
		               (uint8_t)__builtin_popcountll(stopped));
}

static uint32_t comm_in(const struct box_op *op)
{
	return atomic_load_explicit(&op->comm, relaxed) % BOX_LIVE_COMMS;
}

static void sweep_slot(struct sweep *sweep, struct track *track, unsigned slot, bool pool_is_short,
                       uint64_t now_tick)
{
	struct box_op *op = &track->box->ops[slot];
	uint32_t generation = generation_of(op);
	struct box_comm *comm = &track->box->comms[atomic_load_explicit(&op->comm, relaxed)];
	uint64_t started = atomic_load_explicit(&op->started_channels, relaxed);
	uint64_t stopped = atomic_load_explicit(&op->stopped_channels, memory_order_acquire);
	uint64_t channels = started ^ (stopped << 1 | stopped >> 63);
	bool all_stopped = started && started == stopped;

	if (!track_in_use(generation))
		return;
	stamp(track, op, generation, now_tick);
	uint64_t age = age_ns(track, &op->enqueue_tick, now_tick);

	if (sweep->seen_channels[slot] != channels ||
	    !atomic_load_explicit(&op->event_tick, relaxed)) {
		sweep->seen_channels[slot] = channels;
		atomic_store_explicit(&op->event_tick, now_tick, relaxed);
	}
	bool orphaned =
	    atomic_load_explicit(&comm->generation, relaxed) !=
		atomic_load_explicit(&op->comm_generation, relaxed) ||
	    (pool_is_short && /* what an aborted communicator left is evidence of a hang */
	     atomic_load_explicit(&comm->state, relaxed) != BOX_COMM_LIVE);
	/* The thread that stopped the last channel found us busy with the communicator; or holds it
	 * back, for less than a round. */
	bool complete = (unsigned)__builtin_popcountll(stopped) >=
	                atomic_load_explicit(&op->kind, relaxed) >> 24;

	if (all_stopped && complete && age_ns(track, &op->event_tick, now_tick)) {
		track_settle(track, op, generation, TRACK_SLOT_FREE);
	} else if (all_stopped && complete) {
		track_complete(track, op, generation, TRACK_SLOT_FREE);
	} else if (all_stopped && age_ns(track, &op->event_tick, now_tick) > SETTLED_NS &&
	           may_settle(track, op)) {
		settle(track, op, generation, stopped);
	} else if (orphaned || (pool_is_short && is_stuck(track, op, age, now_tick))) {
		track_expire(track, op, generation, TRACK_SLOT_RESTS);
	} else if (age > OVERTAKEN_NS &&
	           (reclaim_is_overtaken(track, op) || is_passed(track, op))) {
		clockmix_untold(track, op);
		track_end_untimed(track, op, generation, TRACK_SLOT_RESTS);
	}
}

/* Whether NCCL gives events of a function's operations: in any communicator, for a shared key. */
static bool has_seen(const struct track *track, const struct box_key *key)
{
	uint32_t seen = 0;

	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		if (i == key->comm || key->comm == BOX_COMM_MORE)
			seen |= atomic_load_explicit(&track->comms[i].seen_funcs, relaxed);
	return seen & 1u << key->func;
}

/* Calls that were followed by no operation for a whole round, nor while their group is open (NCCL
 * may connect for long before the first), will get none. */
static void settle_calls(struct sweep *sweep, struct track *track)
{
	for (uint32_t i = 0; i < BOX_KEYS; i++) {
		struct box_key *key = &track->box->keys[i];
		bool used = atomic_load_explicit(&key->used, memory_order_acquire) == 1;
		bool lives = used && key->comm < BOX_LIVE_COMMS;
		uint32_t generation =
		    used ? atomic_load_explicit(&track->box->comms[key->comm].generation, relaxed)
		         : 0;

		if (lives && atomic_load_explicit(&track->comms[key->comm].open_group, relaxed) &&
		    sweep->called_in[i] == generation)
			continue;
		uint64_t bytes = atomic_exchange_explicit(&track->keys.called_bytes[i], 0, relaxed);
		uint32_t ops = atomic_exchange_explicit(&track->keys.called_ops[i], 0, relaxed);

		if (sweep->called_ops[i] && (lives || (used && keys_is_shared(i))) &&
		    sweep->called_in[i] == generation && !has_seen(track, key))
			keys_add_untimed(track->box, i, sweep->called_ops[i],
			                 sweep->called_bytes[i]);
		sweep->called_ops[i] = ops;
		sweep->called_bytes[i] = bytes;
		sweep->called_in[i] = generation;
	}
}

static uint32_t open_number(const void *argument, unsigned comm)
{
	const struct track *track = argument;

	return atomic_load_explicit(&track->comms[comm].open_group, relaxed);
}

void sweep_count(struct track *track)
{
	uint64_t sum[BOX_LIVE_COMMS];

	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++) {
		struct box_comm *comm = &track->box->comms[i];

		/* Acquire: before the slots, or what ends in between would be counted twice. It is
		 * freed before it is counted. */
		sum[i] = atomic_load_explicit(&comm->completed, memory_order_acquire) +
		         atomic_load_explicit(&comm->untimed, memory_order_acquire) +
		         atomic_load_explicit(&comm->lost, memory_order_acquire);
	}
	for (unsigned slot = 0; slot < BOX_OPS; slot++) {
		struct box_op *op = &track->ops[slot];

		if (!track_in_use(generation_of(op)))
			continue;
		/* Behind the generation: a free slot names the communicator that had it last. */
		uint32_t comm = atomic_load_explicit(&op->comm, relaxed) % BOX_LIVE_COMMS;

		sum[comm] += atomic_load_explicit(&op->comm_generation, relaxed) ==
		             atomic_load_explicit(&track->box->comms[comm].generation, relaxed);
	}
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		owned_raise(&track->box->comms[i].enqueued, sum[i]);
}

void sweep_round(struct sweep *sweep, struct track *track, uint64_t now_tick)
{
	unsigned used = 0, used_shared = 0;
	uint16_t held[BOX_LIVE_COMMS] = { 0 };

	for (unsigned slot = 0; slot < BOX_OPS; slot++) {
		uint32_t generation = generation_of(&track->ops[slot]);
		unsigned in_use = track_in_use(generation);

		if ((generation & BOX_OP_STATE_MASK) == BOX_OP_GIVEN_UP) /* in an earlier round */
			slots_clear(&track->ops[slot], generation);
		used += in_use;
		used_shared += slot >= SLOTS_SHARED ? in_use : 0;
		held[comm_in(&track->ops[slot])] += (uint16_t)in_use;
	}
	for (unsigned slot = 0; used && slot < BOX_OPS; slot++)
		if (track_in_use(generation_of(&track->ops[slot])))
			sweep_slot(sweep, track, slot,
			           used_shared > BOX_OPS - SLOTS_SHARED - SHORT_POOL ||
			               held[comm_in(&track->ops[slot])] >
			                   SLOTS_OF_COMM - SHORT_POOL,
			           now_tick);
	settle_calls(sweep, track);
	groups_close_strays(&track->groups, sweep->strays, open_number, track);
	slotless_round(&sweep->slotless, track, now_tick, SETTLED_NS, OVERTAKEN_NS);
	queue_note_progress(&sweep->queue, track->box, now_tick);
	queue_round(&sweep->queue, track, age_ns(track, &track->sweep_tick, now_tick), used);
	sweep_count(track);
	atomic_store_explicit(&track->full, false, relaxed);
	atomic_store_explicit(&track->sweep_tick, now_tick, memory_order_release);
}
