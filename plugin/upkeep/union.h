/* SPDX-License-Identifier: Apache-2.0 */
/* upkeep/union.h - how long a GPU was in at least one operation, by windows of CLOCK_REALTIME
 * (struct box_union).
 *
 * Operations overlap and may end in any order: a time that several of them cover counts once. The
 * state keeps where the latest operation ended and the latest gaps before that, in which no
 * operation has been seen yet; an operation that is reported late closes the gaps that it covers.
 * Where there are more than UNION_GAPS, the oldest stays open for good.
 */
#ifndef NCCL_INSPECTOR_UPKEEP_UNION_H
#define NCCL_INSPECTOR_UPKEEP_UNION_H

#include "box/box.h"

#define UNION_GAPS 512u

struct union_gap {
	uint64_t start_ns, end_ns; /* GPU's clock */
};

struct union_state {
	struct box_union *box;
	_Atomic uint32_t *seq; /* box_header.sample_seq: odd while windows are moved */
	uint64_t end_ns;       /* of the operation that ended last, GPU's clock; 0: none yet */
	unsigned gaps;
	struct union_gap gap[UNION_GAPS]; /* they rise */
};

/* Begins a union for a GPU, an index of box_header.gpu. `box` must be all zero. All functions but
 * union_ahead_at are called by the thread that has the inspector's lock. */
void union_init(struct union_state *state, struct box_union *box, _Atomic uint32_t *seq,
                unsigned gpu);

/* Tells what CLOCK_REALTIME shows now, and how far it is ahead of the GPU's clock, in ns. If it was
 * set back by more than two windows, the windows begin anew. */
void union_set_clock(struct union_state *state, uint64_t real_ns, int64_t ahead_ns);

/* Adds an operation: start < stop, by the GPU's clock. */
void union_add(struct union_state *state, uint64_t start_ns, uint64_t stop_ns);

/* So many operations that ended around that Unix time are missing. */
void union_lose(struct union_state *state, uint64_t real_ns, uint32_t operations);

/* Returns how far CLOCK_REALTIME was ahead of the GPU's clock at a time of that clock, in ns. */
int64_t union_ahead_at(const struct box_union *box, uint64_t gpu_ns);

#endif
