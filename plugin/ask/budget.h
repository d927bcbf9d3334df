/* SPDX-License-Identifier: Apache-2.0 */
/* ask/budget.h - how many operations are measured, so that the plugin keeps within its share of a core.
 *
 * Above the budget for 5 s: kernel events of half as many. Below half of it for 30 s: of twice as many; where that
 * does not last a minute the next time takes twice as long, up to an hour, so it does not flap.
 *
 * Only the time in NCCL's calls falls with it. What the plugin's own thread takes lowers what is left for that, but to
 * no less than half of the budget: otherwise a thread that costs too much would take away measurements and save nothing.
 */
#ifndef NCCL_INSPECTOR_ASK_BUDGET_H
#define NCCL_INSPECTOR_ASK_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#define BUDGET_MOST 64u

struct budget {
	uint32_t budget_ppm; /* of one core; 0: no guard */
	uint32_t every;      /* kernel events for one operation in so many: 1, 2, 4 ... BUDGET_MOST */
	uint32_t share_ppm;  /* what the last window has shown */
	uint64_t last_ns, last_hot_ns, last_own_ns; /* of the last round */
	/* The window: */
	unsigned rounds;
	uint64_t span_ns, hot_ns, own_ns;
	uint64_t worst_hot_ns, worst_span_ns; /* the round with the most time in calls */
	uint64_t quiet_ns;    /* below half of the allowance, at this `every` */
	uint64_t patience_ns; /* for so long it must be, to measure more */
	uint64_t changed_ns;  /* when `every` last changed; 0: never */
	bool lowered;         /* then it became less */
};

void budget_init(struct budget *budget, uint32_t budget_ppm);

/* Measuring begins or begins again; what was before does not count. Times are totals, `now_ns` is CLOCK_MONOTONIC. */
void budget_begin(struct budget *budget, uint64_t now_ns, uint64_t hot_ns, uint64_t own_ns);

/* About once a second: time spent in NCCL's calls and by our own thread. Returns whether `every` has changed. */
bool budget_round(struct budget *budget, uint64_t now_ns, uint64_t hot_ns, uint64_t own_ns);

#endif
