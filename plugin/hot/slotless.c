/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/slotless.h"

#include "base/clock.h"
#include "hot/group_end.h"
#include "hot/handle.h"
#include "hot/reclaim.h"

#define relaxed memory_order_relaxed

void *slotless_member(struct track *track, uint32_t group, const struct slotless *member)
{
	uint64_t token = atomic_load_explicit(&track->groups.group[group - 1].token, relaxed);
	struct slotless now = *member;

	now.known_tick = atomic_load_explicit(&track->sweep_tick, relaxed);
	if (track->json && !now.enqueue_tick)
		now.enqueue_tick = clock_ticks();
	groups_add_slotless(&track->groups, group, &now);
	return handle_of(token << HANDLE_COMM_SHIFT | HANDLE_SLOTLESS);
}

static bool is_active(const struct track *track)
{
	return atomic_load_explicit(&track->active, relaxed);
}

void *slotless_kernel_start(struct track *track, uint64_t bits, uint64_t gpu_ns)
{
	if (!is_active(track))
		return NULL;
	if (!groups_slotless_start(&track->groups, bits >> HANDLE_COMM_SHIFT, gpu_ns)) {
		track_drop(track, BOX_DROP_STALE);
		return NULL;
	}
	return handle_of(handle_as(bits, HANDLE_SLOTLESS_KERNEL));
}

int slotless_kernel_stop(struct track *track, uint64_t bits, uint64_t gpu_ns)
{
	uint64_t token = bits >> HANDLE_COMM_SHIFT;

	if (is_active(track) && groups_slotless_stop(&track->groups, token, gpu_ns))
		track_slotless_over(track, token, true);
	return 0;
}

/* Since when its channels have stood as they stand. */
static uint64_t still_ns(struct slotless_sweep *sweep, struct track *track, unsigned at,
                         uint64_t token, uint64_t channels, uint64_t now_tick)
{
	if (sweep->token[at] != token || sweep->channels[at] != channels) {
		sweep->token[at] = token;
		sweep->channels[at] = channels;
		sweep->since_tick[at] = now_tick;
	}
	return clock_ticks_to_ns(now_tick - sweep->since_tick[at], track->ns_per_tick_q32);
}

/* Its communicator's record serves another one. */
static bool is_gone(const struct track *track, const struct group *group, uint64_t token)
{
	const struct box_comm *comm = &track->box->comms[groups_comm(token)];

	return atomic_load_explicit(&comm->generation, relaxed) !=
	       atomic_load_explicit(&group->comm_generation, relaxed);
}

static bool is_overtaken(const struct track *track, const struct group *group, uint64_t token)
{
	const struct box_comm *comm = &track->box->comms[groups_comm(token)];

	return atomic_load_explicit(&comm->last_sequence, relaxed) >
	       atomic_load_explicit(&group->slotless_last_index, relaxed) + RECLAIM_OVERTAKEN_OPS;
}

void slotless_round(struct slotless_sweep *sweep, struct track *track, uint64_t now_tick,
                    uint64_t settled_ns, uint64_t overtaken_ns)
{
	for (unsigned i = 0;
	     i < GROUPS && atomic_load_explicit(&track->groups.has_slotless, relaxed); i++) {
		const struct group *group = &track->groups.group[i];
		uint64_t token = atomic_load_explicit(&group->token, memory_order_acquire);

		if (!token || !atomic_load_explicit(&group->slotless, relaxed))
			continue;
		uint64_t started = atomic_load_explicit(&group->started_channels, relaxed);
		uint64_t stopped = atomic_load(&group->stopped_channels);
		uint64_t still =
		    still_ns(sweep, track, i, token, started << 32 ^ stopped, now_tick);

		bool settled =
		    groups_is_closed(group) && started && started == stopped && still > settled_ns;

		if (is_gone(track, group, token) ||
		    (!started && still > overtaken_ns && is_overtaken(track, group, token)))
			track_slotless_over(track, token, false);
		else if (settled || groups_slotless_ended(&track->groups, token))
			track_slotless_over(track, token, true);
	}
}
