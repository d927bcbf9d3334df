/* SPDX-License-Identifier: Apache-2.0 */
/* upkeep/timeline.h - the time lines of the box: how the busiest kinds of operation did in each
 * window.
 *
 * The hot path knows nothing of them: once a second the beat looks how far the keys have come since
 * the window began. If the look was late, the window says by how much (late_ms).
 */
#ifndef NCCL_INSPECTOR_UPKEEP_TIMELINE_H
#define NCCL_INSPECTOR_UPKEEP_TIMELINE_H

#include "box/box.h"

/* What the keys of a line had when its present window began. */
struct timeline_base {
	uint32_t window_s; /* CLOCK_REALTIME; 0: no window yet */
	uint64_t ops, bytes, busy_ns, last_index;
	uint32_t count[HIST_BUCKETS];
};

struct timeline {
	struct timeline_base base[BOX_LINES];
	struct timeline_base now; /* scratch */
};

/* One round, about once a second; `real_ns`: CLOCK_REALTIME. By the beat, under the inspector's
 * lock. */
void timeline_round(struct timeline *lines, struct box *box, uint64_t real_ns);

#endif
