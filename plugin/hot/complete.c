/* SPDX-License-Identifier: Apache-2.0 */
/* hot/complete.c - the end of an operation: exactly once, by one thread at a time for a communicator, and only with times
 * that can be true. */
#include "nccl/abi.h"
#include "box/bandwidth.h"
#include "base/clock.h"
#include "hot/peers.h"
#include "hot/record.h"
#include "hot/slots.h"
#include "hot/state.h"

#define relaxed memory_order_relaxed
#define likely track_likely
#define INLINE static inline __attribute__((always_inline))

/* An operation cannot have run longer than it has been known, nor begun before, but for the time from its launch
 * to NCCL's first word of it. */
#define PLAUSIBLE_SLACK_NS INT64_C(1000000000)
/* The clocks are compared for one operation in so many. */
#define CLOCKS_EVERY 64u

bool track_enter(struct box_comm *comm)
{
	uint32_t busy = atomic_load_explicit(&comm->busy, relaxed);

	return !(busy & 1) && atomic_compare_exchange_strong_explicit(&comm->busy, &busy, busy + 1,
								      memory_order_acquire, relaxed);
}

void track_leave(struct box_comm *comm)
{
	atomic_store_explicit(&comm->busy, atomic_load_explicit(&comm->busy, relaxed) + 1,
			      memory_order_release);
}

/* The distance of our clock and the GPU's: the smallest one seen of late is nearest to it, for we hear of an end
 * only after it. */
static void compare_clocks(struct track *track, struct box_comm *comm, uint64_t stop)
{
	uint64_t now = clock_ticks(), since = atomic_load_explicit(&comm->clock_since_tick, relaxed);
	int64_t ahead = (int64_t)(clock_ticks_to_ns(now, track->ns_per_tick_q32) - stop);
	int64_t least = atomic_load_explicit(&comm->clock_ahead_ns, relaxed);

	uint64_t past_ns = clock_ticks_to_ns(now - since, track->ns_per_tick_q32);

	if (!since || past_ns > TRACK_CLOCKS_NS) {
		atomic_store_explicit(&comm->clock_ahead_before_ns, since && past_ns < 2 * TRACK_CLOCKS_NS ? least : ahead,
				      relaxed);
		atomic_store_explicit(&comm->clock_since_tick, now, relaxed);
		least = INT64_MAX;
	}
	if (ahead < least)
		atomic_store_explicit(&comm->clock_ahead_ns, ahead, relaxed);
}

/* Nothing can have lasted longer than it has been known (`since`), */
INLINE bool lasted_longer(const struct track *track, uint64_t start, uint64_t stop, uint64_t since)
{
	return !likely(stop - start <= PLAUSIBLE_SLACK_NS) &&
	       stop - start > clock_ticks_to_ns(clock_ticks() - since, track->ns_per_tick_q32) + PLAUSIBLE_SLACK_NS;
}

/* nor have begun before. */
INLINE bool began_before(const struct track *track, const struct box_comm *comm, uint64_t start, uint64_t since)
{
	int64_t least = atomic_load_explicit(&comm->clock_ahead_ns, relaxed);
	int64_t before = atomic_load_explicit(&comm->clock_ahead_before_ns, relaxed);
	int64_t began_ns = (int64_t)(start + (uint64_t)(before < least ? before : least)); /* by our clock */

	return began_ns + PLAUSIBLE_SLACK_NS < (int64_t)clock_ticks_to_ns(since, track->ns_per_tick_q32);
}

/* Duration and clocks of an operation that is over, against when we can have come to know of it. */
INLINE bool is_plausible(struct track *track, struct box_comm *comm, const struct box_op *op)
{
	uint64_t start = atomic_load_explicit(&op->gpu_start_ns, relaxed);
	uint64_t stop = atomic_load_explicit(&op->gpu_stop_ns, relaxed);
	uint64_t round = atomic_load_explicit(&track->sweep_tick, memory_order_acquire);
	uint64_t since = atomic_load_explicit(&op->known_tick, relaxed);
	uint64_t index = atomic_load_explicit(&op->index, relaxed);
	uint64_t compared = atomic_load_explicit(&comm->clock_since_tick, relaxed);

	if (!since)
		since = round;
	if (stop <= start || lasted_longer(track, start, stop, since))
		return false;
	/* The last round's time will do to see that it is long ago. */
	if (!likely(index % CLOCKS_EVERY && compared &&
		    (int64_t)(round - compared) < (int64_t)track->clocks_ticks))
		compare_clocks(track, comm, stop);
	return !began_before(track, comm, start, since);
}

/* The same of a group's members without a slot. */
static bool is_slotless_plausible(struct track *track, struct box_comm *comm, uint64_t token)
{
	uint64_t start, stop, since;

	if (!groups_slotless_times(&track->groups, token, &start, &stop, &since))
		return true; /* there is nothing to tell */
	if (stop <= start || lasted_longer(track, start, stop, since))
		return false;
	if (!atomic_load_explicit(&comm->clock_since_tick, relaxed))
		compare_clocks(track, comm, stop);
	return !began_before(track, comm, start, since);
}

static uint16_t json_flags(const struct track *track)
{
	return track->options.timing == BOX_TIMING_CPU ? JSON_CPU_TIMED : 0;
}

/* The group's members are over: it is one more operation. The caller has the communicator to itself. */
static void group_account(struct track *track, unsigned comm, const struct group_facts *facts)
{
	struct key_words words = { comm, facts->func, (uint8_t)bandwidth_size_class(facts->bytes),
				   BOX_ALGO_GROUP, BOX_PROTO_UNKNOWN };
	uint32_t key = keys_find(&track->keys, track->box, &words);
	struct finished finished = {
		.bytes = facts->bytes,
		.rate_q20 = keys_rate_q20(facts->rate_bytes, facts->stop_ns - facts->start_ns),
		.time_ns = facts->stop_ns - facts->start_ns,
		.index = facts->last_index,
	};

	if (facts->stop_ns <= facts->start_ns)
		return;
	if (key == KEYS_NONE)
		track_drop(track, BOX_DROP_NO_KEY);
	else
		keys_account(track->box, key, &finished);
	record_group(track, comm, key, facts);
	if (!likely(!track->json)) {
		struct json_record record = {
			.enqueue_tick = facts->enqueue_tick,
			.end_tick = clock_ticks(),
			.gpu_start_ns = facts->start_ns,
			.time_ns = finished.time_ns,
			.bytes = facts->bytes,
			.sequence = facts->last_index,
			.kind = (uint32_t)(words.func | words.algo << 8),
			.others_q31 = (uint32_t)(JSON_ALL_Q31 * (double)facts->rate_bytes / (double)facts->bytes),
			.comm = (uint16_t)comm,
			.flags = json_flags(track) | JSON_GROUP,
			.comm_generation = atomic_load_explicit(&track->box->comms[comm].generation, relaxed),
		};

		jsonring_push(track->json, &record, NULL);
	}
}

static void leave_group(struct track *track, struct box_comm *comm, struct box_op *op, bool timed)
{
	uint32_t number = track_group_of(op);
	struct group_facts facts;

	if (number &&
	    groups_member_over(&track->groups, number, atomic_load_explicit(&op->gpu_start_ns, relaxed),
			       timed ? atomic_load_explicit(&op->gpu_stop_ns, relaxed) : 0,
			       atomic_load_explicit(&op->index, relaxed),
			       atomic_load_explicit(&op->enqueue_tick, relaxed), timed ? comm->nranks : 0, &facts))
		group_account(track, track_comm_index(track, comm), &facts);
}

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
		.flags = json_flags(track),
		.comm_generation = atomic_load_explicit(&op->comm_generation, relaxed),
	};

	if (record.peer != EVENT_NO_PEER) /* NCCL does not count them: by the order of their enqueueing */
		record.sequence = atomic_load_explicit(&op->index, relaxed);
	jsonring_push(track->json, &record, track->traces ? &track->traces[op - track->box->ops] : NULL);
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
INLINE struct box_comm *enter_of(struct track *track, struct box_op *op, uint32_t generation, bool *same)
{
	uint32_t index = atomic_load_explicit(&op->comm, relaxed);
	struct box_comm *comm = &track->box->comms[index % BOX_LIVE_COMMS];

	if (!track_enter(comm))
		return NULL;
	if (atomic_load_explicit(&op->generation, memory_order_acquire) != generation) {
		track_leave(comm);
		return NULL;
	}
	*same = atomic_load_explicit(&comm->generation, relaxed) ==
		atomic_load_explicit(&op->comm_generation, relaxed);
	return comm;
}

/* Who counts what is over and then looks at the slots (sweep_count, expo_window) must not find an operation in both, for
 * what he has counted stays. So its slot is freed before this. The caller has the communicator to itself. */
INLINE void count_over(_Atomic uint64_t *figure)
{
	atomic_store_explicit(figure, atomic_load_explicit(figure, relaxed) + 1, memory_order_release);
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
	else
		slots_free(op, generation);
}

/* Its communicator is gone. */
__attribute__((noinline)) static void end_of_gone(struct track *track, struct box_comm *comm, struct box_op *op,
						  uint32_t generation, enum track_slot after)
{
	track_drop(track, BOX_DROP_EXPIRED);
	leave_group(track, comm, op, false);
	let_go(op, generation, after);
	track_leave(comm);
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
	bool plausible = is_plausible(track, comm, op);

	if (!likely(plausible))
		track_drop(track, BOX_DROP_IMPLAUSIBLE);
	return plausible;
}

/* It is over, but its times are not its own or cannot be true. */
__attribute__((noinline)) static bool complete_untimed(struct track *track, struct box_comm *comm, struct box_op *op,
						       uint32_t generation, enum track_slot after)
{
	add_untimed(track, op);
	leave_group(track, comm, op, false);
	let_go(op, generation, after);
	count_given_up(&comm->untimed);
	track_leave(comm);
	return true;
}

INLINE bool complete(struct track *track, struct box_op *op, uint32_t generation, enum track_slot after)
{
	bool same, timed;
	struct box_comm *comm = enter_of(track, op, generation, &same);

	if (!comm)
		return false;
	if (!likely(same)) {
		end_of_gone(track, comm, op, generation, after);
		return true;
	}
	timed = has_own_times(track, track_comm_index(track, comm), op) &&
		likely(atomic_load_explicit(&op->peer_entry, relaxed) != BOX_ENTRY_PLAN) &&
		has_plausible_times(track, comm, op);
	word_raise(&comm->last_sequence, atomic_load_explicit(&op->index, relaxed));
	if (!likely(timed))
		return complete_untimed(track, comm, op, generation, after);
	account(track, op);
	if (!likely(!track_group_of(op)))
		leave_group(track, comm, op, true);
	let_go(op, generation, after);
	count_over(&comm->started);
	count_over(&comm->completed);
	track_leave(comm);
	return true;
}

bool track_complete(struct track *track, struct box_op *op, uint32_t generation, enum track_slot after)
{
	return complete(track, op, generation, after);
}

bool track_expire(struct track *track, struct box_op *op, uint32_t generation, enum track_slot after)
{
	bool same;
	struct box_comm *comm = enter_of(track, op, generation, &same);

	if (!comm)
		return false;
	track_drop(track, BOX_DROP_EXPIRED);
	bool began = atomic_load_explicit(&op->started_channels, relaxed);

	leave_group(track, comm, op, false);
	let_go(op, generation, after);
	if (same && began)
		count_over(&comm->started);
	if (same)
		count_given_up(&comm->lost);
	track_leave(comm);
	return true;
}

bool track_end_untimed(struct track *track, struct box_op *op, uint32_t generation, enum track_slot after)
{
	bool same;
	struct box_comm *comm = enter_of(track, op, generation, &same);

	if (!comm)
		return false;
	if (same)
		add_untimed(track, op);
	else
		track_drop(track, BOX_DROP_EXPIRED);
	leave_group(track, comm, op, false);
	let_go(op, generation, after);
	if (same)
		count_given_up(&comm->untimed);
	track_leave(comm);
	return true;
}

__attribute__((noinline)) static int last_kernel_sampled(struct track *track, struct box_op *op, uint32_t generation)
{
	uint64_t begin_tick = clock_ticks();

	complete(track, op, generation, TRACK_SLOT_FREE);
	atomic_fetch_add_explicit(&track->hot_ticks, clock_ticks() - begin_tick, relaxed);
	return 0;
}

int track_last_kernel(struct track *track, struct box_op *op, uint32_t generation)
{
	if (!likely(atomic_load_explicit(&op->index, relaxed) % TRACK_HOT_SAMPLE))
		return last_kernel_sampled(track, op, generation);
	complete(track, op, generation, TRACK_SLOT_FREE);
	return 0;
}

bool track_slotless_over(struct track *track, uint64_t token, bool timed)
{
	unsigned index = groups_comm(token);
	struct box_comm *comm = &track->box->comms[index];
	struct group_facts facts;

	if (!track_enter(comm))
		return false;
	if (timed && !is_slotless_plausible(track, comm, token)) {
		track_drop(track, BOX_DROP_IMPLAUSIBLE);
		timed = false;
	}
	if (groups_slotless_over(&track->groups, token, timed, comm->nranks, &facts))
		group_account(track, index, &facts);
	track_leave(comm);
	return true;
}

static void group_over(struct track *track, uint64_t word)
{
	unsigned index = handle_comm(word) % BOX_LIVE_COMMS;
	struct group_facts facts;

	if (!atomic_load_explicit(&track->active, relaxed))
		return;
	struct box_comm *comm = &track->box->comms[index];

	if (!groups_close(&track->groups, word >> HANDLE_COMM_SHIFT, comm->nranks, &facts)) {
		if (groups_slotless_ended(&track->groups, word >> HANDLE_COMM_SHIFT))
			track_slotless_over(track, word >> HANDLE_COMM_SHIFT, true);
		return;
	}
	/* All members were over before the call returned, so the other thread is hardly busy with the next. */
	if (track_enter(comm)) {
		group_account(track, index, &facts);
		track_leave(comm);
	} else {
		track_drop(track, BOX_DROP_NO_GROUP);
	}
}

void track_plan_stop(struct track *track, void *plan)
{
	uint64_t word = handle_word(plan);
	const struct track_comm *app = &track->comms[handle_comm(word) % BOX_LIVE_COMMS];
	uint32_t joined = atomic_load_explicit(&app->plan_joined, relaxed);

	/* Where a later one was joined, too, only the entry knows. */
	if (handle_kind(word) == HANDLE_PLAN && joined - handle_number(word) < UINT32_MAX / 2)
		group_over(track, word);
}

int track_group_stop_slowly(struct track *track, uint64_t word)
{
	struct track_comm *app = &track->comms[handle_comm(word) % BOX_LIVE_COMMS];
	bool is_open = atomic_load_explicit(&app->open_group, relaxed) == handle_number(word);

	if (handle_kind(word) != HANDLE_GROUP)
		return 0;
	if (is_open)
		atomic_store_explicit(&app->open_group, 0, relaxed);
	if (atomic_load_explicit(&track->sample_every, relaxed) > 1)
		track_sample_next(track);
	/* Another one began meanwhile: whether this one has members only its entry knows. */
	if (!is_open || atomic_load_explicit(&app->members, relaxed))
		group_over(track, word);
	return 0;
}
