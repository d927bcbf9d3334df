/* SPDX-License-Identifier: Apache-2.0 */
/* prom/window.h - what the texts for Prometheus tell of: the box's sums at both ends of a window,
 * and operations in flight. */
#ifndef NCCL_INSPECTOR_PROM_WINDOW_H
#define NCCL_INSPECTOR_PROM_WINDOW_H

#include "box/box.h"
#include "config.h"

#define PROM_ROWS 256u /* of the longest table */

/* What a key had at one time, and whose it was: a key may serve another kind later. */
struct prom_sum {
	uint32_t comm, comm_generation, packed;
	uint64_t ops, bytes, busy_ns;
	int64_t log2_rate_q20;
};

/* What else it has now. */
struct prom_more {
	uint64_t untimed_ops, untimed_bytes, phased_ops, wait_ns;
};

/* Rows of a table that have series, rising. */
struct prom_rows {
	uint32_t count;
	uint16_t row[PROM_ROWS];
};

struct prom {
	struct box *box;
	const struct config *config;
	unsigned api; /* NCCL profiler interface in use, for the label `version` */
	/* Sums at this and at the last prom_window. */
	struct prom_sum now[BOX_KEYS], before[BOX_KEYS];
	struct prom_more more[BOX_KEYS];
	/* Ages of the oldest collective in flight, and of the oldest Send or Recv: a Recv may be
	 * posted for hours. */
	uint64_t inflight_ns[BOX_COMMS], p2p_inflight_ns[BOX_COMMS];
	/* Operations whose kernel began, over or in flight: of that use of the record it never
	 * falls. */
	uint64_t started[BOX_COMMS];
	uint32_t started_generation[BOX_COMMS];
	double quiet_rate; /* bytes a second of a process that calls nothing; negative: it does */
	struct prom_rows comms, keys, nets, labels; /* of one GPU: prom_choose() */
};

/* Closes the window: the texts that follow describe the time since the call before. `now_tick`:
 * clock_ticks(). The caller holds the inspector's lock until the texts are written, so that no
 * communicator is folded meanwhile. */
void prom_window(struct prom *prom, uint64_t now_tick, uint64_t ns_per_tick_q32);

#endif
