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

void budget_init(struct budget *budget, uint32_t budget_ppm)
{
	memset(budget, 0, sizeof(*budget));
	budget->budget_ppm = budget_ppm;
	budget->every = 1;
	budget->net_fewer = budget_ppm ? 1 : 0;
	budget->patience_ns = PATIENCE_NS;
}

static void begin_window(struct budget *budget)
{
	budget->rounds = 0;
	budget->span_ns = budget->hot_ns = budget->own_ns = 0;
	budget->worst_hot_ns = budget->worst_span_ns = 0;
}

static void set_last(struct budget *budget, uint64_t now_ns, uint64_t hot_ns, uint64_t own_ns)
{
	budget->last_ns = now_ns;
	budget->last_hot_ns = hot_ns;
	budget->last_own_ns = own_ns;
}

void budget_begin(struct budget *budget, uint64_t now_ns, uint64_t hot_ns, uint64_t own_ns)
{
	set_last(budget, now_ns, hot_ns, own_ns);
	budget->quiet_ns = 0;
	begin_window(budget);
}

/* ppm of a core, at most one core for each of some thousand threads. */
static uint32_t share_ppm(uint64_t spent_ns, uint64_t span_ns)
{
	double ppm = span_ns ? (double)spent_ns / (double)span_ns * MILLION : 0;

	return ppm < (double)UINT32_MAX ? (uint32_t)ppm : UINT32_MAX;
}

#define NET_FACTOR 4u

static bool has_net_left(const struct budget *budget)
{
	return budget->has_net && budget->net_fewer < BUDGET_NET_MOST;
}

/* `less`: of what is measured. */
static void change(struct budget *budget, bool less, uint64_t now_ns)
{
	bool of_net = less ? has_net_left(budget) : budget->every <= 1;

	if (of_net)
		budget->net_fewer =
		    less ? budget->net_fewer * NET_FACTOR : budget->net_fewer / NET_FACTOR;
	else
		budget->every = less ? budget->every * 2 : budget->every / 2;
	budget->lowered = !less;
	budget->changed_ns = now_ns;
	budget->quiet_ns = 0;
}

static bool measure_less(struct budget *budget, uint64_t now_ns)
{
	budget->quiet_ns = 0;
	if (budget->every >= BUDGET_MOST && !has_net_left(budget))
		return false;
	if (budget->lowered && now_ns - budget->changed_ns < LASTING_NS)
		budget->patience_ns = budget->patience_ns < MOST_PATIENCE_NS / 2
		                          ? budget->patience_ns * 2
		                          : MOST_PATIENCE_NS;
	else
		budget->patience_ns = PATIENCE_NS;
	change(budget, true, now_ns);
	return true;
}

static bool measure_more(struct budget *budget, uint64_t now_ns)
{
	budget->quiet_ns += budget->span_ns;
	if ((budget->every <= 1 && budget->net_fewer <= 1) ||
	    budget->quiet_ns < budget->patience_ns)
		return false;
	change(budget, false, now_ns);
	return true;
}

/* Of all rounds but the worst: the time in calls comes from a few samples, and one that was
 * preempted would weigh as much as a heavy load. */
static bool judge(struct budget *budget, uint64_t now_ns)
{
	uint32_t hot = share_ppm(budget->hot_ns - budget->worst_hot_ns,
	                         budget->span_ns - budget->worst_span_ns);
	uint32_t own = share_ppm(budget->own_ns, budget->span_ns);
	uint32_t half = budget->budget_ppm / 2;
	uint32_t allowance = own < budget->budget_ppm - half ? budget->budget_ppm - own : half;

	budget->share_ppm = hot + (own < UINT32_MAX - hot ? own : UINT32_MAX - hot);
	if (hot > allowance)
		return measure_less(budget, now_ns);
	if (hot < allowance / 2)
		return measure_more(budget, now_ns);
	budget->quiet_ns = 0;
	return false;
}

bool budget_round(struct budget *budget, uint64_t now_ns, uint64_t hot_ns, uint64_t own_ns)
{
	uint64_t span_ns = now_ns - budget->last_ns, hot_spent_ns = hot_ns - budget->last_hot_ns;
	bool changed;

	if (!budget->budget_ppm)
		return false;
	budget->rounds++;
	budget->span_ns += span_ns;
	budget->hot_ns += hot_spent_ns;
	budget->own_ns += own_ns - budget->last_own_ns;
	if (hot_spent_ns >= budget->worst_hot_ns) {
		budget->worst_hot_ns = hot_spent_ns;
		budget->worst_span_ns = span_ns;
	}
	set_last(budget, now_ns, hot_ns, own_ns);
	if (budget->span_ns < WINDOW_NS)
		return false;
	changed = budget->rounds >= FEW_ROUNDS && judge(budget, now_ns);
	begin_window(budget);
	return changed;
}
