/* SPDX-License-Identifier: Apache-2.0 */
/* hot/start.c - the application's side of an operation: from what NCCL announces to a slot. */
#include "hot/start.h"

#include "base/clock.h"
#include "base/printable.h"
#include "hot/clockmix.h"
#include "hot/labels.h"
#include "hot/memo.h"
#include "hot/reclaim.h"
#include "hot/sampling.h"
#include "hot/skew.h"
#include "hot/slotless.h"
#include "hot/slots.h"
#include "hot/trace.h"
#include "nccl/strings.h"

#define relaxed memory_order_relaxed
#define likely track_likely
#define INLINE static inline __attribute__((always_inline))

/* The record of a context, NULL (and counted) when it has none any more. */
static struct box_comm *comm_of(struct track *track, const void *context, uint32_t *generation)
{
	unsigned index = handle_context_comm(context, generation);

	if (index == UINT32_MAX) {
		if (context)
			track_drop(track, BOX_DROP_NO_COMM);
		return NULL;
	}
	struct box_comm *comm = &track->box->comms[index];

	if (atomic_load_explicit(&comm->generation, relaxed) != *generation) {
		/* The communicator is gone, its record serves another. */
		track_drop(track, BOX_DROP_STALE);
		return NULL;
	}
	return comm;
}

/* Whether a Send or Recv, which is told now, is the only one of its group: then nobody needs the
 * group. One that is told after that is counted, and has no group either. */
static bool is_lone(struct track *track, struct track_comm *app, uint32_t number)
{
	bool was_lone = !likely(atomic_load_explicit(&app->lone_group, relaxed) != number);
	bool one_call = atomic_load_explicit(&app->call_group, relaxed) == number &&
	                atomic_load_explicit(&app->group_calls, relaxed) == 1;

	if (!was_lone && !one_call)
		return false;
	if (was_lone)
		track_drop(track, BOX_DROP_NO_GROUP);
	atomic_store_explicit(&app->lone_group, number, relaxed);
	return true;
}

/* The group that a Send or Recv belongs to; 0: none, or (counted) it has no place. */
static uint32_t group_of(struct track *track, unsigned comm, const struct event *event)
{
	uint64_t bits = handle_bits(event->parent), plan = handle_bits(event->plan);
	unsigned kind = handle_kind(bits);
	bool has_plan = handle_kind(plan) == HANDLE_PLAN && handle_comm(plan) == comm;
	struct track_comm *app = &track->comms[comm];
	uint32_t number = 0;

	if (kind != HANDLE_P2P_CALL && kind != HANDLE_GROUP && !has_plan)
		return 0;
	/* A group over several communicators has the first one's token. */
	if (kind != HANDLE_CAPTURED && handle_comm(bits) == comm &&
	    atomic_load_explicit(&app->open_group, relaxed) == handle_number(bits)) {
		if (kind == HANDLE_P2P_CALL && is_lone(track, app, handle_number(bits)))
			return 0;
		number = groups_join(&track->groups, bits >> HANDLE_COMM_SHIFT,
		                     !atomic_load_explicit(&app->members, relaxed));
		if (number)
			atomic_store_explicit(&app->members, true, relaxed);
	} else if (has_plan) {
		number = groups_join(&track->groups, plan >> HANDLE_COMM_SHIFT,
		                     atomic_load_explicit(&app->plan_joined, relaxed) !=
		                         handle_number(plan));
		if (number)
			atomic_store_explicit(&app->plan_joined, handle_number(plan), relaxed);
	}
	if (!number)
		track_drop(track, BOX_DROP_NO_GROUP);
	return number;
}

static void count_untimed(struct track *track, struct box_comm *comm, uint32_t key, uint64_t bytes)
{
	if (key == KEYS_NONE)
		track_drop(track, BOX_DROP_NO_KEY);
	else
		keys_add_untimed(track->box, key, 1, bytes);
	atomic_fetch_add_explicit(&comm->untimed, 1, relaxed);
}

/* What is known of an operation that is told now. */
struct told {
	struct box_comm *comm;
	unsigned comm_index;
	uint32_t comm_generation;
	bool is_p2p, to_self, is_hot_sample;
	uint64_t index, begin_tick; /* begin_tick 0: the time of the call is not taken */
	struct kind kind;
	uint64_t bytes;
	uint8_t channels;
	struct peers_call peer;
	uint32_t group; /* its number + 1; 0: none */
};

/* Of an operation for which NCCL announces none: 0 where none come. */
__attribute__((noinline)) static uint8_t
untold_channels(const struct track *track, const struct box_comm *comm,
                const struct key_fields *fields, uint32_t key, uint64_t bytes, uint64_t index)
{
	if (!channels_untold(fields->algo, comm->nnodes))
		return 0;
	return index % CHANNELS_PROBE ? channels_expected(&track->channels, key, bytes)
	                              : EVENT_CHANNELS_UNKNOWN;
}

/* Of a group's member the group has the time, and it is counted; any other is lost. */
__attribute__((noinline)) static void *without_slot(struct track *track, struct box_comm *comm,
                                                    uint32_t key, uint32_t group, uint64_t bytes,
                                                    const struct slotless *member)
{
	if (!group) {
		track_drop(track, BOX_DROP_NO_SLOT);
		atomic_fetch_add_explicit(&comm->lost, 1, relaxed);
		return NULL;
	}
	count_untimed(track, comm, key, bytes);
	return slotless_member(track, group, member);
}

/* Which key it belongs to, its bytes and its channels. */
INLINE void find_kind(struct track *track, struct told *told, const struct event *event)
{
	if (!likely(
		memo_recall(&track->comms[told->comm_index], told->comm_index, event, &told->kind)))
		told->kind = memo_find(track, told->comm_index, *event);
	told->bytes = event->count * told->kind.datatype_bytes;
	told->channels = likely(event->channels)
	                     ? event->channels
	                     : untold_channels(track, told->comm, &told->kind.fields,
	                                       told->kind.key, told->bytes, told->index);
}

/* Whether NCCL gives it times that are its own. From here on it has its place in the order. */
INLINE bool is_timed(struct track *track, const struct told *told)
{
	bool timed = track->options.timing != BOX_TIMING_NONE && told->channels && told->bytes &&
	             !told->to_self;

	/* Not in `mixes`, which the thread of the kernels writes all the time. */
	if (!likely(!atomic_load_explicit(&told->comm->mixed_since, relaxed)))
		timed = timed && told->kind.fields.func == BOX_FUNC_BROADCAST &&
		        clockmix_broadcast_told(track, told->comm_index);
	atomic_store_explicit(&track->comms[told->comm_index].index, told->index, relaxed);
	if (!likely(atomic_load_explicit(&track->sample_every, relaxed) <= 1))
		timed = timed && track_is_sampled(track);
	return timed;
}

/* Its peer, and the group that it is a member of. */
INLINE void find_company(struct track *track, struct told *told, const struct event *event,
                         bool timed)
{
	unsigned func = told->kind.fields.func;

	if (told->is_p2p && !told->to_self && track->options.timing != BOX_TIMING_NONE)
		told->peer =
		    peers_call(&track->peers, track->box, told->comm_index, func, event->peer);
	if (told->is_p2p && (event->parent || event->plan) && (timed || told->to_self)) {
		told->group = group_of(track, told->comm_index, event);
		if (told->group)
			groups_add(&track->groups, told->group, func == BOX_FUNC_SEND, told->bytes,
			           told->to_self);
	}
}

INLINE void count_root(struct track *track, const struct told *told, const struct event *event,
                       const void *handle)
{
	uint8_t func = told->kind.fields.func;

	if (!likely(!labels_is_rooted(func)))
		labels_root(track, told->comm_index, func, event->root, told->bytes, handle);
}

INLINE void count_hot_time(struct track *track, const struct told *told)
{
	if (!likely(!told->is_hot_sample))
		atomic_fetch_add_explicit(&track->hot_ticks, clock_ticks() - told->begin_tick,
		                          relaxed);
}

/* Gives an operation with a time its slot. Returns its handle; NULL: there is no slot. */
INLINE void *follow(struct track *track, const struct told *told, const struct event *event)
{
	struct slots_use use = {
		.comm = told->comm_index,
		.comm_generation = told->comm_generation,
		.key = told->kind.key,
		.kind = memo_pack(&told->kind.fields, told->channels),
		.peer = event->peer,
		.peer_entry = told->peer.entry,
		.group = track_group_and_plan(&track->comms[told->comm_index], told->group),
		.index = told->index,
		.sequence = event->sequence + told->peer.number,
		.bytes = told->bytes,
		.enqueue_tick = told->begin_tick,
	};
	struct box_op *op = reclaim_take(track, use.comm);

	if (!likely(op))
		return NULL;
	if (use.peer != EVENT_NO_PEER && use.peer_entry == PEERS_NONE)
		track_drop(track, BOX_DROP_NO_PEER);
	if (use.key == KEYS_NONE)
		track_drop(track, BOX_DROP_NO_KEY);
	/* Otherwise the sweep says when it saw the operation first: a clock costs as much as all
	 * the rest. */
	if (!likely(use.enqueue_tick || !track->json))
		use.enqueue_tick = clock_ticks();
	if (!likely(!track->traces))
		trace_begin(&track->traces[op - track->ops], slots_generation(op));
	return slots_use(op, (uint32_t)(op - track->ops), slots_generation(op), &use);
}

/* An operation of a communicator of ours. Returns its handle; NULL: it gets no time. */
INLINE void *operation(struct track *track, struct told *told, const struct event *event)
{
	find_kind(track, told, event);
	bool timed = is_timed(track, told);

	find_company(track, told, event, timed);
	if (!timed) {
		count_untimed(track, told->comm, told->kind.key, told->bytes);
		count_root(track, told, event, NULL);
		count_hot_time(track, told);
		return NULL;
	}
	void *handle = follow(track, told, event);

	count_root(track, told, event, handle);
	if (!likely(handle))
		return without_slot(track, told->comm, told->kind.key, told->group, told->bytes,
		                    &(struct slotless){ .index = told->index,
		                                        .enqueue_tick = told->begin_tick,
		                                        .channels = told->channels,
		                                        .comm_generation = told->comm_generation });
	if (!likely(told->index % TRACK_CALL_SAMPLE || told->is_p2p))
		skew_begin(track, told->comm_index, handle);
	count_hot_time(track, told);
	return handle;
}

void *track_operation(struct track *track, void *context, const struct event *event)
{
	struct told told = { .is_p2p = event->peer != EVENT_NO_PEER,
	                     .peer = { .entry = PEERS_NONE } };

	if (!atomic_load_explicit(&track->follows, relaxed))
		return NULL;
	told.comm_index = handle_context_comm(context, &told.comm_generation);
	told.comm = &track->box->comms[told.comm_index % BOX_LIVE_COMMS];
	if (!likely(told.comm_index != UINT32_MAX &&
	            atomic_load_explicit(&told.comm->generation, relaxed) ==
	                told.comm_generation)) {
		comm_of(track, context, &told.comm_generation); /* counts why */
		return NULL;
	}
	told.index = atomic_load_explicit(&track->comms[told.comm_index].index, relaxed) + 1;
	told.is_hot_sample = !likely(told.index % TRACK_HOT_SAMPLE);
	told.to_self = told.is_p2p && event->peer == told.comm->rank;
	if (told.to_self)
		clockmix_self(track, told.comm_index, told.index);
	if (told.is_p2p && !track->options.p2p)
		return NULL;
	told.begin_tick = track_takes_call(told.index) ? clock_ticks() : 0;
	return operation(track, &told, event);
}

void track_note(struct track *track, void *operation, uint64_t user_tag, const char *kernel_variant)
{
	uint64_t bits = handle_bits(operation);

	if (handle_is_used(bits, HANDLE_OPERATION))
		trace_note(&track->traces[handle_slot(bits)], user_tag, kernel_variant);
}

void track_enqueued(struct track *track, void *operation)
{
	uint64_t bits = handle_bits(operation);

	if (!likely(!track->traces) && handle_is_used(bits, HANDLE_OPERATION) &&
	    atomic_load_explicit(&track->active, relaxed))
		trace_app_stop(&track->traces[handle_slot(bits)], handle_generation(bits));
}

/* How many parts of that size this rank sends or gets, its own included. */
static uint64_t parts_of(const struct box_comm *comm, const struct abi_ce_coll *ce)
{
	uint8_t func = strings_number(STRINGS_FUNC, ce->func);
	bool is_roots =
	    (func == BOX_FUNC_GATHER || func == BOX_FUNC_SCATTER) && ce->root == comm->rank;

	return (func == BOX_FUNC_ALLTOALL || is_roots) && comm->nranks > 0 ? (uint64_t)comm->nranks
	                                                                   : 1;
}

static uint64_t copy_engine_bytes(const struct box_comm *comm, const struct abi_ce_coll *ce)
{
	return ce->count * strings_datatype_bytes(ce->datatype) * parts_of(comm, ce);
}

uint64_t track_copy_engine_bytes(const struct track *track, const void *context,
                                 const struct abi_ce_coll *ce)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	return comm == UINT32_MAX ? 0 : copy_engine_bytes(&track->box->comms[comm], ce);
}

void track_copy_engine(struct track *track, void *context, const struct abi_ce_coll *ce)
{
	const struct event event = { .peer = EVENT_NO_PEER,
	                             .func = ce->func,
	                             .datatype = ce->datatype,
	                             .count = ce->count };
	uint32_t generation;

	if (!atomic_load_explicit(&track->follows, relaxed))
		return;
	struct box_comm *comm = comm_of(track, context, &generation);

	if (!comm)
		return;
	uint64_t bytes = copy_engine_bytes(comm, ce);
	struct key_fields fields = memo_fields(track_comm_index(track, comm), &event, bytes);

	fields.algo = BOX_ALGO_CE;
	memo_mark_seen(&track->comms[fields.comm], fields.func);
	owned_add(&track->comms[fields.comm].index, 1);
	count_untimed(track, comm, keys_find(&track->keys, track->box, &fields), bytes);
}

bool track_name(struct track *track, void *context, uint64_t id, const char *name, int rank)
{
	uint32_t generation, unnamed = 0;
	unsigned index = handle_context_comm(context, &generation);

	if (index == UINT32_MAX || !atomic_load_explicit(&track->active, relaxed))
		return false;
	struct box_comm *comm = &track->box->comms[index];

	if (atomic_load_explicit(&comm->generation, relaxed) != generation ||
	    atomic_load_explicit(&comm->named, relaxed) != BOX_COMM_NAMELESS ||
	    !atomic_compare_exchange_strong(&comm->named, &unnamed, BOX_COMM_BEING_NAMED))
		return false;
	comm->id = id;
	comm->rank = rank;
	printable_copy(comm->name, sizeof(comm->name), name);
	atomic_store_explicit(&comm->named, BOX_COMM_NAMED, memory_order_release);
	return true;
}
