/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/group_end.h"

#include "box/bandwidth.h"
#include "hot/jsonring.h"
#include "hot/plausible.h"
#include "hot/record.h"

#define relaxed memory_order_relaxed
#define likely track_likely

/* The group's members are over: it is one more operation. The caller has the communicator to
 * itself. */
static void group_account(struct track *track, unsigned comm, const struct group_facts *facts)
{
	struct key_fields fields = { comm, facts->func, (uint8_t)bandwidth_size_class(facts->bytes),
	                             BOX_ALGO_GROUP, BOX_PROTO_UNKNOWN };
	uint32_t key = keys_find(&track->keys, track->box, &fields);
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
			.kind = (uint32_t)(fields.func | fields.algo << 8),
			.others_q31 = (uint32_t)(JSON_ALL_Q31 * (double)facts->rate_bytes /
			                         (double)facts->bytes),
			.comm = (uint16_t)comm,
			.flags = record_json_flags(track) | JSON_GROUP,
			.comm_generation =
			    atomic_load_explicit(&track->box->comms[comm].generation, relaxed),
		};

		jsonring_push(track->json, &record, NULL);
	}
}

void track_member_over(struct track *track, struct box_comm *comm, struct box_op *op, bool timed)
{
	uint32_t number = track_group_of(op);
	uint64_t index = atomic_load_explicit(&op->index, relaxed);
	struct group_facts facts;

	if (number &&
	    groups_member_over(
		&track->groups, number, atomic_load_explicit(&op->gpu_start_ns, relaxed),
		timed ? atomic_load_explicit(&op->gpu_stop_ns, relaxed) : 0, index,
		/* Of the others it is when the sweep saw them. */
		record_is_called(track, index) ? atomic_load_explicit(&op->enqueue_tick, relaxed)
		                               : 0,
		timed ? comm->nranks : 0, &facts))
		group_account(track, track_comm_index(track, comm), &facts);
}

bool track_slotless_over(struct track *track, uint64_t token, bool timed)
{
	unsigned index = groups_comm(token);
	struct box_comm *comm = &track->box->comms[index];
	struct group_facts facts;

	if (!comm_enter(comm))
		return false;
	if (timed && !plausible_slotless(track, comm, token)) {
		track_drop(track, BOX_DROP_IMPLAUSIBLE);
		timed = false;
	}
	if (groups_slotless_over(&track->groups, token, timed, comm->nranks, &facts))
		group_account(track, index, &facts);
	comm_leave(comm);
	return true;
}

void track_group_over(struct track *track, uint64_t bits)
{
	unsigned index = handle_comm(bits) % BOX_LIVE_COMMS;
	struct group_facts facts;

	if (!atomic_load_explicit(&track->active, relaxed))
		return;
	struct box_comm *comm = &track->box->comms[index];

	if (!groups_close(&track->groups, bits >> HANDLE_COMM_SHIFT, comm->nranks, &facts)) {
		if (groups_slotless_ended(&track->groups, bits >> HANDLE_COMM_SHIFT))
			track_slotless_over(track, bits >> HANDLE_COMM_SHIFT, true);
		return;
	}
	/* All members were over before the call returned, so the other thread is hardly busy with
	 * the next. */
	if (comm_enter(comm)) {
		group_account(track, index, &facts);
		comm_leave(comm);
	} else {
		track_drop(track, BOX_DROP_NO_GROUP);
	}
}
