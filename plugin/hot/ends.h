/* SPDX-License-Identifier: Apache-2.0 */
/* hot/ends.h - operations that are over, on their way from NCCL's threads to the beat thread's
 * samples.
 *
 * A record is a struct box_sample whose `kind` is the index of its box_key (ENDS_NO_KEY: it has
 * none).
 *
 * One thread at a time has a communicator to itself (hot/owner.h), so each record of struct
 * box_comm has a chunk of its own, into which that thread writes without any atomic exchange. It
 * takes a new chunk for every ENDS_CHUNK operations. The consumer follows from chunk to chunk and
 * gives back those that it has read. If no chunk is free the newest operation is dropped and
 * counted. Nobody waits.
 */
#ifndef NCCL_INSPECTOR_HOT_ENDS_H
#define NCCL_INSPECTOR_HOT_ENDS_H

#include "box/box.h"

#define ENDS_CHUNK 32u   /* operations; a power of two */
#define ENDS_CHUNKS 256u /* 256 KiB: 0.4 s at 20,000 operations a second */
#define ENDS_NO_KEY UINT16_MAX
#define ENDS_FULL UINT32_MAX
/* A flag of a record whose call was not timed: queued_us is which operation of its communicator it
 * is (low 32 bits), by which the beat finds about when it was called (upkeep/call_times.h). */
#define ENDS_ORDER 0x80u

/* How far the consumer has read the operations of one record of struct box_comm. */
struct ends_reader {
	uint16_t chunk; /* + 1; 0: none yet */
	uint16_t read;  /* of that chunk */
};

struct ends {
	/* Where the next operation of a communicator goes is in box_comm.end_place, on a line that
	 * its thread writes anyway. A multiple of ENDS_CHUNK says that it needs a new chunk. */
	_Alignas(64) struct box_sample ends[ENDS_CHUNKS * ENDS_CHUNK];
	_Alignas(64) _Atomic uint64_t free[ENDS_CHUNKS / 64]; /* a bit for each chunk */
	/* The chunk that follows, + 1: of a chunk, and of a communicator that had none. */
	_Atomic uint16_t next[ENDS_CHUNKS], first[BOX_LIVE_COMMS];
	_Atomic uint32_t lost[BOX_LIVE_COMMS];                   /* dropped operations; wraps */
	_Alignas(64) struct ends_reader readers[BOX_LIVE_COMMS]; /* the consumer's */
};

/* Makes all chunks free and all memory present. box_comm.end_place must be 0. Before any
 * operation. */
void ends_init(struct ends *ends);

/* For ends_place: takes a chunk. Returns ENDS_FULL, and counts the operation as lost, if there is
 * none. */
uint32_t ends_take_chunk(struct ends *ends, struct box *box, unsigned comm);

/* Returns where the next operation of a communicator goes, an index of ends->ends, or ENDS_FULL.
 * The caller has the communicator to itself, fills the record in, and calls ends_hand_over. */
static inline __attribute__((always_inline)) uint32_t ends_place(struct ends *ends, struct box *box,
                                                                 unsigned comm)
{
	uint32_t place = atomic_load_explicit(&box->comms[comm].end_place, memory_order_relaxed);

	return __builtin_expect(place % ENDS_CHUNK, 1) ? place : ends_take_chunk(ends, box, comm);
}

/* The record at that place is whole, and the consumer may have it. */
static inline void ends_hand_over(struct box *box, unsigned comm, uint32_t place)
{
	atomic_store_explicit(&box->comms[comm].end_place, place + 1, memory_order_release);
}

/* For the consumer: returns the oldest record of a communicator before `until`, a value that
 * box_comm.end_place had (acquired); NULL: there is none. It stays valid until ends_release. */
const struct box_sample *ends_peek(struct ends *ends, unsigned comm, uint32_t until);

/* For the consumer: gives that record back. */
void ends_release(struct ends *ends, unsigned comm);

#endif
