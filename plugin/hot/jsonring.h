/* SPDX-License-Identifier: Apache-2.0 */
/* hot/jsonring.h - finished operations on their way from NCCL's threads to the thread that writes
 * JSON lines.
 *
 * Many producers, one consumer; no lock, no system call, nothing to wait for. A full ring drops the
 * newest and counts it: a missing line is better than a late collective.
 */
#ifndef NCCL_INSPECTOR_HOT_JSONRING_H
#define NCCL_INSPECTOR_HOT_JSONRING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hot/trace.h"

/* The lower eight bits of json_record.flags; the upper ones are the ring's. */
enum json_flag {
	JSON_CPU_TIMED = 1,
	JSON_GROUP = 2, /* of Sends and Recvs, as one operation: others_q31 is valid, not peer */
};
#define JSON_ALL_Q31 (1u << 31)

struct json_record { /* 64 bytes */
	/* clock_ticks() when NCCL started it, and when its last kernel was reported. */
	uint64_t enqueue_tick, end_tick;
	uint64_t gpu_start_ns, time_ns; /* GPU clock; time_ns is never 0 */
	uint64_t bytes, sequence;
	uint32_t kind; /* func | algo << 8 | proto << 16 | channels << 24 */
	union {
		int32_t peer;        /* negative: a collective */
		uint32_t others_q31; /* share of the bytes that go to other ranks, in 2^-31 */
	};
	uint16_t comm; /* index of box->comms, in the use that comm_generation says */
	uint16_t flags;
	uint32_t comm_generation;
};
_Static_assert(sizeof(struct json_record) == 64, "one cache line");

struct jsonring_cell {
	_Alignas(64) uint64_t words[7];
	_Atomic uint64_t last; /* of the record; bits 24 to 31 tell whose turn it is */
};

struct jsonring {
	struct jsonring_cell *cells;
	struct trace_op *traces; /* one for each cell, NULL unless verbose */
	uint32_t mask;
	unsigned lap_shift;
	uint64_t min_bytes;        /* smaller operations get no line */
	uint64_t tail;             /* the consumer's */
	_Atomic uint64_t *dropped; /* where drops are counted */
	_Alignas(64) _Atomic uint64_t head;
};

/* Gets memory for 2^log2_count records, prefaulted, so that there is no page fault later. `traced`:
 * with room for traces. Drops are counted in `*dropped`. Returns 0 or -errno. Before the first
 * operation. */
int jsonring_open(struct jsonring *ring, unsigned log2_count, uint64_t min_bytes, bool traced,
                  _Atomic uint64_t *dropped);

/* Gives the memory back. Nobody may use the ring any more. */
void jsonring_free(struct jsonring *ring);

/* Hands a record over. False: it was dropped (and counted), or is too small for a line. `trace` is
 * NULL unless the ring was opened `traced`; it is copied. Any thread. */
bool jsonring_push(struct jsonring *ring, const struct json_record *record,
                   const struct trace_op *trace);

/* For the consumer: copies the oldest record, which stays in the ring until it is released. False:
 * there is none. */
bool jsonring_peek(struct jsonring *ring, struct json_record *record);

/* For the consumer: the trace of the oldest record; NULL unless traced. */
const struct trace_op *jsonring_trace(const struct jsonring *ring);

/* For the consumer: gives the place of the oldest record back. */
void jsonring_release(struct jsonring *ring);

#endif
