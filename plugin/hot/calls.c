/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/calls.h"

#include "hot/group_end.h"
#include "hot/labels.h"
#include "hot/memo.h"
#include "hot/sampling.h"
#include "nccl/strings.h"

#define relaxed memory_order_relaxed

void *track_old_group_start(struct track *track, void *context)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (!context || !atomic_load_explicit(&track->active, relaxed))
		return NULL;
	if (comm == UINT32_MAX)
		return handle_of(HANDLE_P2P_CALL); /* a number that means nothing to us */
	struct track_comm *app = &track->comms[comm];
	uint32_t number = track_next_group(app);

	track_next_plan(app);
	atomic_store_explicit(&app->open_group, number, relaxed);
	atomic_store_explicit(&app->members, false, relaxed);
	return handle_of((uint64_t)number << HANDLE_NUMBER_SHIFT |
	                 (uint64_t)comm << HANDLE_COMM_SHIFT | HANDLE_GROUP);
}

void track_plan_stop(struct track *track, void *plan)
{
	uint64_t bits = handle_bits(plan);
	const struct track_comm *app = &track->comms[handle_comm(bits) % BOX_LIVE_COMMS];
	uint32_t joined = atomic_load_explicit(&app->plan_joined, relaxed);

	/* Where a later one was joined, too, only the entry knows. */
	if (handle_kind(bits) == HANDLE_PLAN && joined - handle_number(bits) < UINT32_MAX / 2)
		track_group_over(track, bits);
}

int track_group_stop_slowly(struct track *track, uint64_t bits)
{
	struct track_comm *app = &track->comms[handle_comm(bits) % BOX_LIVE_COMMS];
	bool is_open = atomic_load_explicit(&app->open_group, relaxed) == handle_number(bits);

	if (handle_kind(bits) != HANDLE_GROUP)
		return 0;
	if (is_open)
		atomic_store_explicit(&app->open_group, 0, relaxed);
	if (atomic_load_explicit(&track->sample_every, relaxed) > 1)
		track_sample_next(track);
	/* Another one began meanwhile: whether this one has members only its entry knows. */
	if (!is_open || atomic_load_explicit(&app->members, relaxed))
		track_group_over(track, bits);
	return 0;
}

/* For track_knows: the address of a name stands for it while its communicator lives. */
static void know(struct track_comm *app, const char *func)
{
	unsigned place = 0;

	if (atomic_load_explicit(&app->graph, relaxed) != CLOCKMIX_NO_GRAPH)
		return; /* each call is looked at */
	while (place < TRACK_KNOWN && atomic_load_explicit(&app->known[place], relaxed))
		place++;
	/* A fourth one takes turns with the third. */
	atomic_store_explicit(&app->known[place < TRACK_KNOWN ? place : TRACK_KNOWN - 1], func,
	                      relaxed);
}

void track_coll_call(struct track *track, void *context, const struct event *event)
{
	uint32_t generation, key;
	unsigned comm = handle_context_comm(context, &generation);
	uint8_t func = strings_number(STRINGS_FUNC, event->func);

	if (comm == UINT32_MAX || !atomic_load_explicit(&track->follows, relaxed) ||
	    atomic_load_explicit(&track->box->comms[comm].generation, relaxed) != generation)
		return;
	clockmix_called(track, comm);
	if (atomic_load_explicit(&track->comms[comm].seen_funcs, relaxed) & 1u << func) {
		know(&track->comms[comm], event->func);
		return;
	}
	if (func == BOX_FUNC_BROADCAST)
		clockmix_broadcast(track, comm);
	uint64_t bytes = event->count * strings_datatype_bytes(event->datatype);
	struct key_fields fields = memo_fields(comm, event, bytes);

	if (labels_is_rooted(func))
		labels_called(track, comm, func, event->root, bytes);
	key = keys_find(&track->keys, track->box, &fields);
	if (key == KEYS_NONE)
		return; /* if an operation follows, that counts */
	atomic_fetch_add_explicit(&track->keys.called_bytes[key], bytes, relaxed);
	atomic_fetch_add_explicit(&track->keys.called_ops[key], 1, relaxed);
}

void track_captured_call(struct track *track, void *context, const struct event *event)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);
	uint8_t func = strings_number(STRINGS_FUNC, event->func);

	clockmix_captured(track, context);
	if (comm != UINT32_MAX && func == BOX_FUNC_BROADCAST &&
	    !(atomic_load_explicit(&track->comms[comm].seen_funcs, relaxed) & 1u << func))
		clockmix_broadcast(track, comm);
}
