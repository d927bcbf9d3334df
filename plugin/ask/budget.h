/* SPDX-License-Identifier: Apache-2.0 */
/* ask/budget.h - how many operations are measured, so that the plugin keeps within its share of a
 * core.
 *
 * After 5 s above the budget NCCL is asked for the kernel events of half as many operations, after
 * 30 s below half of it for those of twice as many. Where network detail is taken, that becomes
 * less first, by a factor of four each time, and more last: times are worth more. If that does not
 * last a minute, the next time takes twice as long, up to an hour, so that it does not flap.
 *
 * Sampling saves only time in NCCL's calls. What the plugin's own threads take lowers what is left
 * for the calls, but to no less than half of the budget: otherwise a thread that costs too much
 * would take measurements away and save nothing.
 *
 * All functions want the inspector's lock. Times are totals in ns; `now_ns` is CLOCK_MONOTONIC.
 */
#ifndef NCCL_INSPECTOR_ASK_BUDGET_H
#define NCCL_INSPECTOR_ASK_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#define BUDGET_MOST 64u
#define BUDGET_NET_MOST 64u

struct budget {
	uint32_t budget_ppm; /* of one core; 0: no limit */
	uint32_t every; /* kernel events for one operation in so many: 1, 2, 4 ... BUDGET_MOST */
	uint32_t net_fewer; /* network detail of one in so many: 1, 4, 16, BUDGET_NET_MOST; 0: no
	                       limit */
	bool has_net;       /* network detail is taken */
	uint32_t share_ppm; /* of one core that measuring took in the last window */
	uint64_t last_ns, last_hot_ns, last_own_ns; /* of the last round */
	/* The window: */
	unsigned rounds;
	uint64_t span_ns, hot_ns, own_ns;
	uint64_t worst_hot_ns, worst_span_ns; /* the round with the most time in calls */
	uint64_t quiet_ns;                    /* below half of the allowance, at this `every` */
	uint64_t patience_ns;                 /* for so long it must be, to measure more */
	uint64_t changed_ns;                  /* when it last changed; 0: never */
	bool lowered;                         /* then it became less */
};

/* Prepares, with every operation measured. */
void budget_init(struct budget *budget, uint32_t budget_ppm);

/* Measuring begins, or begins again: what was before does not count. */
void budget_begin(struct budget *budget, uint64_t now_ns, uint64_t hot_ns, uint64_t own_ns);

/* About once a second, with the time spent in NCCL's calls and by our own threads. Returns whether
 * `every` or `net_fewer` has changed. */
bool budget_round(struct budget *budget, uint64_t now_ns, uint64_t hot_ns, uint64_t own_ns);

#endif
