/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/late.h"

#include <string.h>

#include "base/clock.h"
#include "hot/clockmix.h"

#define relaxed memory_order_relaxed

static uint64_t later(uint64_t one, uint64_t other)
{
	return one > other ? one : other;
}

static void decide(struct late *late, uint32_t first_ones, bool are_true)
{
	for (uint32_t i = 0; i < late->count && i < first_ones; i++) {
		struct late_op *op = &late->ops[i];

		if (!op->is_decided)
			op->is_true = are_true;
		op->is_decided = true;
	}
}

/* Whether a kernel of that plan began, at `start_ns`, when one of an earlier plan had yet to end.
 */
static bool contradicts(const struct late *late, uint16_t plan, uint64_t start_ns)
{
	for (uint32_t i = 0; i < late->count; i++)
		if (late->ops[i].stop_ns > start_ns && clockmix_is_later(plan, late->ops[i].plan))
			return true;
	return false;
}

/* Returns how long ago that was, as far as is known: the smallest distance of the clocks seen is
 * nearest to the truth, for we hear of an end only after it. */
static int64_t heard_after_ns(const struct track *track, struct late *late, uint64_t now_tick,
                              uint64_t stop_ns)
{
	uint64_t since_ns = clock_ticks_to_ns(now_tick - late->heard_tick, track->ns_per_tick_q32);
	int64_t ahead = (int64_t)(clock_ticks_to_ns(now_tick, track->ns_per_tick_q32) - stop_ns);
	int64_t before = late->ahead_ns + (int64_t)(since_ns >> LATE_DRIFT_SHIFT);

	late->ahead_ns = late->heard_tick && before < ahead ? before : ahead;
	return ahead - late->ahead_ns;
}

/* The time from end to end that many operations need at least. */
static void note_spacing(struct late *late, uint64_t index, uint64_t stop_ns)
{
	if (!late->heard_tick || index <= late->index || stop_ns <= late->stop_ns)
		return;
	uint64_t spacing = (stop_ns - late->stop_ns) / (index - late->index);
	uint64_t before = late->spacing_ns + late->spacing_ns / 16;

	late->spacing_ns = late->spacing_ns && before < spacing ? before : spacing;
}

static void note_behind(struct late *late)
{
	late->in_time = 0;
	late->is_behind = true;
}

/* Whether NCCL's thread told of it just when it ended, which was after it had told of the one
 * before, and about as long after as it ended later: one that catches up is quicker. Counts those.
 * Of a plan all end together: the first one counts. */
static bool is_in_time(const struct track *track, struct late *late, uint16_t plan, uint64_t index,
                       uint64_t stop_ns)
{
	uint64_t now_tick = clock_ticks();
	bool is_first = !late->heard_tick;
	uint64_t before_ns = clock_ticks_to_ns(late->heard_tick, track->ns_per_tick_q32);
	int64_t took_ns =
	    (int64_t)clock_ticks_to_ns(now_tick - late->heard_tick, track->ns_per_tick_q32);
	int64_t after_ns = heard_after_ns(track, late, now_tick, stop_ns);
	int64_t works_ns = (int64_t)(LATE_PROMPT_WORKS * late->spacing_ns);
	bool is_same = !is_first && plan == late->plan;
	bool is_late = after_ns > LATE_PROMPT_NS && after_ns > works_ns;
	bool in_time = !is_first && !is_same && !is_late &&
	               (int64_t)stop_ns > (int64_t)before_ns - late->ahead_ns &&
	               2 * took_ns >= (int64_t)(stop_ns - late->stop_ns);

	if (is_late && !is_same)
		note_behind(late);
	else if (in_time && late->in_time < LATE_IN_TIME)
		late->in_time++;
	late->is_behind &= late->in_time < LATE_IN_TIME;
	if (!is_same)
		note_spacing(late, index, stop_ns);
	late->plan = plan;
	late->index = index;
	late->stop_ns = stop_ns;
	late->heard_tick = now_tick;
	return in_time;
}

static void hold(struct track *track, unsigned comm, const struct box_op *op, uint32_t generation)
{
	struct late *late = &track->lates[comm];

	late->ops[late->count++] = (struct late_op){
		.stop_ns = atomic_load_explicit(&op->gpu_stop_ns, relaxed),
		.slot = (uint32_t)(op - track->ops),
		.generation = generation,
		.plan = clockmix_plan(atomic_load_explicit(&op->group, relaxed)),
	};
	if (late->count > LATE_HELD)
		decide(late, 1, !late->is_behind);
}

/* All operations have to be looked at while some are held. */
static void set_until(struct track *track, unsigned comm, uint64_t until_ns)
{
	struct late *late = &track->lates[comm];

	late->until_ns = until_ns;
	atomic_store_explicit(&track->mixes[comm].clear_until_ns, late->count ? 0 : until_ns,
	                      relaxed);
}

bool late_look(struct track *track, unsigned comm, const struct box_op *op, uint32_t generation)
{
	struct late *late = &track->lates[comm];
	uint64_t stop_ns = atomic_load_explicit(&op->gpu_stop_ns, relaxed);
	uint64_t index = atomic_load_explicit(&op->index, relaxed);
	const struct track_comm *app = &track->comms[comm];
	uint64_t until = atomic_load_explicit(&track->mixes[comm].clear_until_ns, relaxed);
	uint16_t plan = clockmix_plan(atomic_load_explicit(&op->group, relaxed));
	bool is_last = atomic_load_explicit(&app->index, relaxed) < index + LATE_TOLD ||
	               atomic_load_explicit(&app->plan, relaxed) == plan;

	if (track_likely(is_last && !late->count && !late->is_behind)) {
		set_until(track, comm, later(stop_ns + LATE_GAP_NS, until));
		return false;
	}
	bool in_time = is_in_time(track, late, plan, index, stop_ns);
	bool is_wrong = contradicts(late, plan, atomic_load_explicit(&op->gpu_start_ns, relaxed));

	until = late->count ? late->until_ns : until;
	if (is_wrong) {
		note_behind(late);
		decide(late, UINT32_MAX, false);
	} else if (is_last || (in_time && late->in_time >= LATE_IN_TIME)) {
		decide(late, UINT32_MAX, true);
		late->is_behind = false;
	}
	bool any_held = late->count && !late->ops[late->count - 1].is_decided;
	bool is_held = !is_last && (is_wrong || any_held || stop_ns > until);

	if (is_held)
		hold(track, comm, op, generation);
	set_until(track, comm, later(stop_ns + LATE_GAP_NS, until));
	return is_held;
}

bool late_next(struct track *track, unsigned comm, uint32_t *slot, uint32_t *generation,
               bool *is_true)
{
	struct late *late = &track->lates[comm];
	uint32_t at = 0;

	while (at < late->count && !late->ops[at].is_decided)
		at++;
	if (at == late->count)
		return false;
	*slot = late->ops[at].slot;
	*generation = late->ops[at].generation;
	*is_true = late->ops[at].is_true;
	late->count--;
	memmove(&late->ops[at], &late->ops[at + 1], (late->count - at) * sizeof(*late->ops));
	set_until(track, comm, late->until_ns);
	return true;
}

uint32_t late_holds(const struct track *track, unsigned comm, uint32_t slot, uint32_t generation)
{
	const struct late *late = &track->lates[comm];

	for (uint32_t i = 0; i < late->count; i++)
		if (late->ops[i].slot == slot && late->ops[i].generation == generation)
			return i + 1;
	return 0;
}

void late_settle(struct track *track, unsigned comm, uint32_t first_ones)
{
	struct late *late = &track->lates[comm];

	decide(late, first_ones, !late->is_behind);
}

void late_new_comm(struct track *track, unsigned comm)
{
	bool wraps = track->options.api >= 4 && track->options.api <= 6;

	track->lates[comm] = (struct late){ 0 };
	set_until(track, comm, wraps ? 0 : UINT64_MAX - LATE_GAP_NS);
}
