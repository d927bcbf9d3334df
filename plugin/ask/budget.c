/* SPDX-License-Identifier: Apache-2.0 */
#include "ask/budget.h"

#include <string.h>

#define SECOND_NS 1000000000ull
#define WINDOW_NS (5 * SECOND_NS)
#define FEW_ROUNDS 3u /* in a window: our thread did not get to run, and nothing can be said */
#define PATIENCE_NS (30 * SECOND_NS)
#define MOST_PATIENCE_NS (3600 * SECOND_NS)
#define LASTING_NS (60 * SECOND_NS)
#define MILLION 1000000u

void guard_init(struct guard *guard, uint32_t budget_ppm)
{
	memset(guard, 0, sizeof(*guard));
	guard->budget_ppm = budget_ppm;
	guard->every = 1;
	guard->patience_ns = PATIENCE_NS;
}

static void begin_window(struct guard *guard)
{
	guard->rounds = 0;
	guard->span_ns = guard->hot_ns = guard->own_ns = 0;
	guard->worst_hot_ns = guard->worst_span_ns = 0;
}

static void set_last(struct guard *guard, uint64_t now_ns, uint64_t hot_ns, uint64_t own_ns)
{
	guard->last_ns = now_ns;
	guard->last_hot_ns = hot_ns;
	guard->last_own_ns = own_ns;
}

void guard_begin(struct guard *guard, uint64_t now_ns, uint64_t hot_ns, uint64_t own_ns)
{
	set_last(guard, now_ns, hot_ns, own_ns);
	guard->quiet_ns = 0;
	begin_window(guard);
}

/* ppm of a core, at most one core for each of some thousand threads. */
static uint32_t share_ppm(uint64_t spent_ns, uint64_t span_ns)
{
	double ppm = span_ns ? (double)spent_ns / (double)span_ns * MILLION : 0;

	return ppm < (double)UINT32_MAX ? (uint32_t)ppm : UINT32_MAX;
}

static void change(struct guard *guard, uint32_t every, uint64_t now_ns)
{
	guard->lowered = every < guard->every;
	guard->every = every;
	guard->changed_ns = now_ns;
	guard->quiet_ns = 0;
}

static bool measure_less(struct guard *guard, uint64_t now_ns)
{
	guard->quiet_ns = 0;
	if (guard->every >= GUARD_MOST)
		return false;
	if (guard->lowered && now_ns - guard->changed_ns < LASTING_NS)
		guard->patience_ns = guard->patience_ns < MOST_PATIENCE_NS / 2 ? guard->patience_ns * 2 :
										 MOST_PATIENCE_NS;
	else
		guard->patience_ns = PATIENCE_NS;
	change(guard, guard->every * 2, now_ns);
	return true;
}

static bool measure_more(struct guard *guard, uint64_t now_ns)
{
	guard->quiet_ns += guard->span_ns;
	if (guard->every <= 1 || guard->quiet_ns < guard->patience_ns)
		return false;
	change(guard, guard->every / 2, now_ns);
	return true;
}

/* Of all rounds but the worst: the time in calls comes from a few samples, and one that was preempted would weigh
 * as much as a heavy load. */
static bool judge(struct guard *guard, uint64_t now_ns)
{
	uint32_t hot = share_ppm(guard->hot_ns - guard->worst_hot_ns, guard->span_ns - guard->worst_span_ns);
	uint32_t own = share_ppm(guard->own_ns, guard->span_ns);
	uint32_t half = guard->budget_ppm / 2;
	uint32_t allowance = own < guard->budget_ppm - half ? guard->budget_ppm - own : half;

	guard->share_ppm = hot + (own < UINT32_MAX - hot ? own : UINT32_MAX - hot);
	if (hot > allowance)
		return measure_less(guard, now_ns);
	if (hot < allowance / 2)
		return measure_more(guard, now_ns);
	guard->quiet_ns = 0;
	return false;
}

bool guard_round(struct guard *guard, uint64_t now_ns, uint64_t hot_ns, uint64_t own_ns)
{
	uint64_t span_ns = now_ns - guard->last_ns, hot_spent_ns = hot_ns - guard->last_hot_ns;
	bool changed;

	if (!guard->budget_ppm)
		return false;
	guard->rounds++;
	guard->span_ns += span_ns;
	guard->hot_ns += hot_spent_ns;
	guard->own_ns += own_ns - guard->last_own_ns;
	if (hot_spent_ns >= guard->worst_hot_ns) {
		guard->worst_hot_ns = hot_spent_ns;
		guard->worst_span_ns = span_ns;
	}
	set_last(guard, now_ns, hot_ns, own_ns);
	if (guard->span_ns < WINDOW_NS)
		return false;
	changed = guard->rounds >= FEW_ROUNDS && judge(guard, now_ns);
	begin_window(guard);
	return changed;
}
