/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/complete.h"

#include "base/clock.h"
#include "hot/clockmix.h"
#include "hot/group_end.h"
#include "hot/jsonring.h"
#include "hot/labels.h"
#include "hot/late.h"
#include "hot/peers.h"
#include "hot/plausible.h"
#include "hot/record.h"
#include "hot/slots.h"
#include "hot/trace.h"

#define relaxed memory_order_relaxed
#define likely track_likely
#define INLINE static inline __attribute__((always_inline))

/* A line for the JSON file. */
static void hand_over(struct track *track, const struct box_op *op, uint64_t time_ns)
{
	struct json_record record = {
		.enqueue_tick = atomic_load_explicit(&op->enqueue_tick, relaxed),
		.end_tick = clock_ticks(),
		.gpu_start_ns = atomic_load_explicit(&op->gpu_start_ns, relaxed),
		.time_ns = time_ns,
		.bytes = atomic_load_explicit(&op->bytes, relaxed),
		.sequence = atomic_load_explicit(&op->sequence, relaxed),
		.kind = atomic_load_explicit(&op->kind, relaxed),
		.peer = atomic_load_explicit(&op->peer, relaxed),
		.comm = (uint16_t)atomic_load_explicit(&op->comm, relaxed),
		.flags = record_json_flags(track),
		.comm_generation = atomic_load_explicit(&op->comm_generation, relaxed),
	};

	/* NCCL does not count them: by the order of their enqueueing. */
	if (record.peer != EVENT_NO_PEER)
		record.sequence = atomic_load_explicit(&op->index, relaxed);
	jsonring_push(track->json, &record,
	              track->traces ? &track->traces[op - track->box->ops] : NULL);
}

INLINE void account(struct track *track, struct box_op *op)
{
	uint32_t key = atomic_load_explicit(&op->key, relaxed);
	uint32_t peer = atomic_load_explicit(&op->peer_entry, relaxed);
	uint64_t start = atomic_load_explicit(&op->gpu_start_ns, relaxed);
	uint64_t stop = atomic_load_explicit(&op->gpu_stop_ns, relaxed);
	uint64_t synced = atomic_load_explicit(&op->synced_ns, relaxed);
	uint64_t bytes = atomic_load_explicit(&op->bytes, relaxed);
	struct finished finished = {
		.bytes = bytes,
		.rate_q20 = keys_rate_q20(bytes, stop - start),
		.time_ns = stop - start,
		.index = atomic_load_explicit(&op->index, relaxed),
		.phased = synced >= start && synced <= stop,
		.wait_ns = synced - start,
	};

	if (key != KEYS_NONE)
		keys_account(track->box, key, &finished);
	if (peer != PEERS_NONE)
		peers_account(track->box, peer, bytes, finished.time_ns, finished.rate_q20);
	record_operation(track, op, key, start, stop, bytes);
	if (!likely(!atomic_load_explicit(&track->labelled, relaxed)))
		labels_over(track, op, finished.time_ns);
	if (!likely(!track->json))
		hand_over(track, op, finished.time_ns);
}

/* Enters the communicator of an operation if that use of the slot is still in use. */
INLINE struct box_comm *enter_of(struct track *track, struct box_op *op, uint32_t generation,
                                 bool *same)
{
	uint32_t index = atomic_load_explicit(&op->comm, relaxed);
	struct box_comm *comm = &track->box->comms[index % BOX_LIVE_COMMS];

	if (!comm_enter(comm))
		return NULL;
	if (atomic_load_explicit(&op->generation, memory_order_acquire) != generation) {
		comm_leave(comm);
		return NULL;
	}
	*same = atomic_load_explicit(&comm->generation, relaxed) ==
	        atomic_load_explicit(&op->comm_generation, relaxed);
	return comm;
}

/* sweep_count and prom_window first count what is over and then look at the slots. They must not
 * find an operation in both, because what they have counted stays: so its slot is freed before
 * this. The caller has the communicator to itself. */
INLINE void count_over(_Atomic uint64_t *figure)
{
	atomic_store_explicit(figure, atomic_load_explicit(figure, relaxed) + 1,
	                      memory_order_release);
}

/* The same for figures to which the application's thread adds, too. */
static void count_given_up(_Atomic uint64_t *figure)
{
	atomic_fetch_add_explicit(figure, 1, memory_order_release);
}

INLINE void let_go(struct box_op *op, uint32_t generation, enum track_slot after)
{
	if (after == TRACK_SLOT_RESTS)
		slots_rest(op, generation);
	else if (after == TRACK_SLOT_HANDED_ON)
		slots_hand_on(op, generation);
	else
		slots_free(op, generation);
}

/* Its communicator is gone. */
__attribute__((noinline)) static void end_of_gone(struct track *track, struct box_comm *comm,
                                                  struct box_op *op, uint32_t generation,
                                                  enum track_slot after)
{
	track_drop(track, BOX_DROP_EXPIRED);
	track_member_over(track, comm, op, false);
	let_go(op, generation, after);
	comm_leave(comm);
}

/* Whether the times of an operation that is over can be its own. */
INLINE bool has_own_times(struct track *track, unsigned comm, const struct box_op *op)
{
	struct clockmix *mix = &track->mixes[comm];
	uint16_t plan = clockmix_plan(atomic_load_explicit(&op->group, relaxed));
	bool is_next = clockmix_is_later(plan, atomic_load_explicit(&mix->plan, relaxed));

	if (is_next)
		atomic_store_explicit(&mix->plan, plan, relaxed);
	return likely(!atomic_load_explicit(&mix->since, relaxed) && track->options.api != 4) ||
	       clockmix_look(track, comm, op, is_next);
}

static void add_untimed(struct track *track, const struct box_op *op)
{
	uint32_t key = atomic_load_explicit(&op->key, relaxed);

	if (key != KEYS_NONE)
		keys_add_untimed(track->box, key, 1, atomic_load_explicit(&op->bytes, relaxed));
}

INLINE bool has_plausible_times(struct track *track, struct box_comm *comm, const struct box_op *op)
{
	bool plausible = plausible_operation(track, comm, op);

	if (!likely(plausible))
		track_drop(track, BOX_DROP_IMPLAUSIBLE);
	return plausible;
}

/* It is over, and has its time. */
INLINE void finish(struct track *track, struct box_comm *comm, struct box_op *op,
                   uint32_t generation, enum track_slot after)
{
	account(track, op);
	if (!likely(!track_group_of(op)))
		track_member_over(track, comm, op, true);
	let_go(op, generation, after);
	count_over(&comm->started);
	count_over(&comm->completed);
}

/* It is over, but its times are not its own or cannot be true. */
__attribute__((noinline)) static void finish_untimed(struct track *track, struct box_comm *comm,
                                                     struct box_op *op, uint32_t generation,
                                                     enum track_slot after)
{
	add_untimed(track, op);
	track_member_over(track, comm, op, false);
	let_go(op, generation, after);
	count_given_up(&comm->untimed);
}

/* Those that were held back and are so no longer. */
static void finish_held(struct track *track, struct box_comm *comm)
{
	uint32_t slot, generation;
	bool is_true;

	while (late_next(track, track_comm_index(track, comm), &slot, &generation, &is_true)) {
		struct box_op *op = &track->ops[slot];

		if (atomic_load_explicit(&op->generation, memory_order_acquire) != generation)
			continue; /* the sweep has ended it */
		if (is_true) {
			finish(track, comm, op, generation, TRACK_SLOT_FREE);
		} else {
			track_drop(track, BOX_DROP_IMPLAUSIBLE);
			finish_untimed(track, comm, op, generation, TRACK_SLOT_FREE);
		}
	}
}

void track_settle_comm(struct track *track, struct box_comm *comm)
{
	late_settle(track, track_comm_index(track, comm), UINT32_MAX);
	finish_held(track, comm);
}

/* NCCL's thread may have been late for it. Returns whether it is over. */
__attribute__((noinline)) static bool complete_doubtful(struct track *track, struct box_comm *comm,
                                                        struct box_op *op, uint32_t generation,
                                                        enum track_slot after)
{
	bool is_held = late_look(track, track_comm_index(track, comm), op, generation);

	finish_held(track, comm);
	if (!is_held)
		finish(track, comm, op, generation, after);
	comm_leave(comm);
	return !is_held;
}

INLINE bool complete(struct track *track, struct box_op *op, uint32_t generation,
                     enum track_slot after, bool may_hold)
{
	bool same, timed;
	struct box_comm *comm = enter_of(track, op, generation, &same);

	if (!comm)
		return false;
	if (!likely(same)) {
		end_of_gone(track, comm, op, generation, after);
		return true;
	}
	unsigned index = track_comm_index(track, comm);

	timed = has_own_times(track, index, op) &&
	        likely(atomic_load_explicit(&op->peer_entry, relaxed) != BOX_ENTRY_PLAN) &&
	        has_plausible_times(track, comm, op);
	owned_raise(&comm->last_sequence, atomic_load_explicit(&op->index, relaxed));
	if (!likely(timed)) {
		finish_untimed(track, comm, op, generation, after);
		comm_leave(comm);
		return true;
	}
	if (!likely(late_is_clear(&track->mixes[index],
	                          atomic_load_explicit(&op->gpu_stop_ns, relaxed))) &&
	    may_hold)
		return complete_doubtful(track, comm, op, generation, after);
	finish(track, comm, op, generation, after);
	comm_leave(comm);
	return true;
}

/* Whether a use of a slot is held back already; with `ends_it` it is over then, and what was held
 * before it. */
static bool is_held(struct track *track, struct box_op *op, uint32_t generation, bool ends_it)
{
	bool same;
	struct box_comm *comm = enter_of(track, op, generation, &same);
	uint32_t place = 0;

	if (!comm)
		return false;
	unsigned index = track_comm_index(track, comm);

	if (same)
		place = late_holds(track, index, (uint32_t)(op - track->ops), generation);
	if (place && ends_it) {
		late_settle(track, index, place);
		finish_held(track, comm);
	}
	comm_leave(comm);
	return place;
}

bool track_complete(struct track *track, struct box_op *op, uint32_t generation,
                    enum track_slot after)
{
	return !is_held(track, op, generation, false) &&
	       complete(track, op, generation, after, true);
}

bool track_settle(struct track *track, struct box_op *op, uint32_t generation,
                  enum track_slot after)
{
	return is_held(track, op, generation, true) ||
	       complete(track, op, generation, after, false);
}

bool track_expire(struct track *track, struct box_op *op, uint32_t generation,
                  enum track_slot after)
{
	bool same;
	struct box_comm *comm = enter_of(track, op, generation, &same);

	if (!comm)
		return false;
	track_drop(track, BOX_DROP_EXPIRED);
	bool began = atomic_load_explicit(&op->started_channels, relaxed);

	track_member_over(track, comm, op, false);
	let_go(op, generation, after);
	if (same && began)
		count_over(&comm->started);
	if (same)
		count_given_up(&comm->lost);
	comm_leave(comm);
	return true;
}

bool track_end_untimed(struct track *track, struct box_op *op, uint32_t generation,
                       enum track_slot after)
{
	bool same;
	struct box_comm *comm = enter_of(track, op, generation, &same);

	if (!comm)
		return false;
	if (same)
		add_untimed(track, op);
	else
		track_drop(track, BOX_DROP_EXPIRED);
	track_member_over(track, comm, op, false);
	let_go(op, generation, after);
	if (same)
		count_given_up(&comm->untimed);
	comm_leave(comm);
	return true;
}

__attribute__((noinline)) static int last_kernel_sampled(struct track *track, struct box_op *op,
                                                         uint32_t generation)
{
	uint64_t begin_tick = clock_ticks();

	complete(track, op, generation, TRACK_SLOT_FREE, true);
	atomic_fetch_add_explicit(&track->hot_ticks, clock_ticks() - begin_tick, relaxed);
	return 0;
}

int track_last_kernel(struct track *track, struct box_op *op, uint32_t generation)
{
	if (!likely(atomic_load_explicit(&op->index, relaxed) % TRACK_HOT_SAMPLE))
		return last_kernel_sampled(track, op, generation);
	complete(track, op, generation, TRACK_SLOT_FREE, true);
	return 0;
}
