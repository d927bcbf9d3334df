/* SPDX-License-Identifier: Apache-2.0 */
/* upkeep/samples.h - exact records of the operations that end in bursts (struct box_sample), and
 * the GPUs' busy time.
 *
 * Several times a second the beat takes the operations that are over from track->ends, and gives
 * each to the union of its GPU (upkeep/union.h). Those that ended in a burst go into the table
 * (upkeep/sample_table.h). All functions want the inspector's lock.
 */
#ifndef NCCL_INSPECTOR_UPKEEP_SAMPLES_H
#define NCCL_INSPECTOR_UPKEEP_SAMPLES_H

#include "hot/state.h"
#include "upkeep/call_times.h"
#include "upkeep/sample_table.h"
#include "upkeep/union.h"

/* What is known of a record of struct box_comm while it serves one communicator. */
struct samples_comm {
	bool known;
	uint32_t incarnation;
	uint64_t lost, untimed; /* box_comm's, when they were last looked at */
	uint32_t dropped;       /* ends.lost, the same */
	uint32_t until;         /* scratch: box_comm.end_place when the round began */
	/* Of the operations so far the latest end, and the latest begin that was long after the end
	 * before it (GPU's clock). */
	uint64_t stop_ns, after_gap_ns;
};

/* What is known of a GPU of box_header.gpu. */
struct samples_gpu {
	bool known, has_union;
	int64_t ahead_ns; /* of our clock (clock_ticks_to_ns) before the GPU's */
};

struct samples {
	struct track *track;
	struct box *box;
	struct sample_table table;
	unsigned unions;          /* in use */
	uint16_t kinds[BOX_KEYS]; /* of a key: index of its box_sample_kind + 1; 0: not known */
	struct samples_comm comms[BOX_LIVE_COMMS];
	struct samples_gpu gpus[BOX_GPUS];
	struct call_times calls;
	struct union_state states[BOX_UNIONS];
};

/* Prepares, and sets track->samples to it. */
void samples_init(struct samples *samples, struct track *track);

/* Takes all operations that are over by now. Returns how many there were. By the beat. */
unsigned samples_round(struct samples *samples);

/* A record of struct box_comm is about to serve another communicator. The caller has it to
 * itself. */
void samples_end_comm(struct samples *samples, unsigned comm);

#endif
