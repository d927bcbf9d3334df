/* SPDX-License-Identifier: Apache-2.0 */
/* expo_prom.h - the tables of the box as Prometheus text, one for each GPU of the process.
 *
 * Names, types and help come from python/nccl_inspector/metrics.tsv. Values are rounded
 * to few binary digits, because such numbers take a third of the disk in Prometheus.
 */
#ifndef NCCL_INSPECTOR_EXPO_PROM_H
#define NCCL_INSPECTOR_EXPO_PROM_H

#include "box.h"
#include "config.h"
#include "text.h"

#define EXPO_MAX_SERIES 250u /* a GPU */
#define EXPO_MAX_COMMS 16u   /* with series of their own, a GPU: the busiest */

/* What a key had at one time, and whose it was: a key may serve another kind later. */
struct expo_sum {
	uint32_t comm, comm_generation, words;
	uint64_t ops, bytes, busy_ns;
	int64_t log2_rate_q20;
};

struct expo {
	struct box *box;
	const struct config *config;
	unsigned api; /* NCCL profiler interface in use, for the label `version` */
	struct expo_sum now[BOX_KEYS], before[BOX_KEYS]; /* sums at this and at the last expo_window */
	uint64_t inflight_ns[BOX_COMMS]; /* age of the oldest operation in flight */
	uint32_t running[BOX_COMMS];     /* operations in flight whose kernel began */
	bool shown_key[BOX_KEYS], shown_comm[BOX_COMMS];
};

/* Closes the window: what follows describes the time since the call before. The caller holds the inspector's
 * lock until the texts are written, so that no communicator is folded meanwhile. */
void expo_window(struct expo *expo, uint64_t now_tick, uint64_t ns_per_tick_q32);

/* Chooses the busiest communicators and keys of one GPU; what goes without series is counted. */
void expo_choose(struct expo *expo, unsigned gpu);

/* Writes the text of one GPU (index of box_header.gpu); process-wide series go with the first. */
void expo_prom_write(struct expo *expo, unsigned gpu, struct text *text);

#endif
