/* SPDX-License-Identifier: Apache-2.0 */
/* hot/trace.h - the CPU times at which NCCL reported each event of an operation, for
 * NCCL_INSPECTOR_DUMP_VERBOSE.
 *
 * One trace for each slot of the box, in memory of their own that is there in verbose mode only.
 * The thread that starts an operation calls trace_begin before anybody has its handle; the channels
 * come from one thread; the application's stop may come at any time, also too late.
 */
#ifndef NCCL_INSPECTOR_HOT_TRACE_H
#define NCCL_INSPECTOR_HOT_TRACE_H

#include <stdatomic.h>
#include <stdint.h>

#define TRACE_CHANNELS 64u
#define TRACE_VARIANT_BYTES 32u

struct trace_channel {
	uint64_t start_tick, stop_tick;
	uint16_t start_number, stop_number; /* place in the order of the operation's events */
};

struct trace_op {
	uint64_t start_tick;       /* its number is 1 */
	uint64_t started, stopped; /* bit i: channel i */
	_Atomic uint32_t events;
	_Atomic uint32_t stop_number;
	/* Of the slot's use that the application's stop is of; 0: none yet. */
	_Atomic uint32_t stop_generation;
	_Atomic uint32_t generation; /* of the slot's use; 0: no trace */
	_Atomic uint64_t stop_tick;
	uint64_t user_tag; /* that the application gave its call (v7); 0: none */
	/* Of the kernel that NCCL chose (v7); "": not told. */
	char kernel_variant[TRACE_VARIANT_BYTES];
	struct trace_channel channel[TRACE_CHANNELS];
};

/* Returns a trace for each of `slots` slots; NULL without memory. */
struct trace_op *trace_open(unsigned slots);

/* An operation begins; `generation`: of its slot's use, as in its handle. Before anybody else has
 * the handle. */
void trace_begin(struct trace_op *op, uint32_t generation);

/* What v7 says besides of an operation; `kernel_variant` may be NULL. Before anybody else has its
 * handle. */
void trace_note(struct trace_op *op, uint64_t user_tag, const char *kernel_variant);

/* A channel begins, and ends. By the thread that reports the kernels. */
void trace_kernel_start(struct trace_op *op, unsigned channel);
void trace_kernel_stop(struct trace_op *op, unsigned channel);

/* NCCL's stop of an operation. Does nothing for one that is over. By the thread that calls NCCL. */
void trace_app_stop(struct trace_op *op, uint32_t generation);

/* Copies what there is of a trace; `from` NULL: there is none. The caller has the operation's
 * communicator to itself. */
void trace_copy(struct trace_op *to, const struct trace_op *from);

#endif
