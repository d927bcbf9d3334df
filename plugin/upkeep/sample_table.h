/* SPDX-License-Identifier: Apache-2.0 */
/* upkeep/sample_table.h - the table of the operations that ended in bursts (struct box_sample).
 *
 * When it is full, bursts become shorter or rarer by a power of two, and what is no longer in one
 * is dropped.
 */
#ifndef NCCL_INSPECTOR_UPKEEP_SAMPLE_TABLE_H
#define NCCL_INSPECTOR_UPKEEP_SAMPLE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "box/box.h"

/* A full table with fewer distinct periods gets shorter bursts, else rarer ones. */
#define SAMPLE_TABLE_PERIODS 16u

struct sample_table {
	struct box *box;
	uint32_t cursor;     /* where a free place is looked for first */
	uint64_t full_burst; /* of the shortest length: for what ends in it no room can be made */
	uint8_t union_of_gpu[BOX_GPUS]; /* index of box->unions, which know the clock of each GPU */
};

/* What a sample gets for queued_us, and in addition to its flags. */
struct sample_queued {
	uint32_t us;
	uint8_t flags;
};

/* Whether a Unix time (ns) lies in a burst. */
static inline bool sample_table_in_burst(uint64_t real_ns, unsigned length_bits,
                                         unsigned period_bits)
{
	return (real_ns & ((1ull << period_bits) - 1)) >> length_bits == 0;
}

/* Puts an operation that ended at that Unix time into the table, if that is in a burst; counts it
 * as lost if there is no room. `kind`: index of box->sample_kinds. By the beat. */
void sample_table_keep(struct sample_table *table, const struct box_sample *end, uint16_t kind,
                       struct sample_queued queued, uint64_t real_ns);

#endif
