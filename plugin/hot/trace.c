/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/trace.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "base/printable.h"

#define relaxed memory_order_relaxed

struct trace_op *trace_open(unsigned slots)
{
	void *map = mmap(NULL, slots * sizeof(struct trace_op), PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	return map == MAP_FAILED ? NULL : map;
}

void trace_begin(struct trace_op *op, uint32_t generation)
{
	op->started = op->stopped = 0;
	atomic_store_explicit(&op->generation, generation, relaxed);
	atomic_store_explicit(&op->events, 1, relaxed);
	atomic_store_explicit(&op->stop_generation, 0, relaxed);
	op->user_tag = 0;
	op->kernel_variant[0] = '\0';
	op->start_tick = clock_ticks();
}

void trace_note(struct trace_op *op, uint64_t user_tag, const char *kernel_variant)
{
	op->user_tag = user_tag;
	printable_copy(op->kernel_variant, sizeof(op->kernel_variant), kernel_variant);
}

static uint32_t next_number(struct trace_op *op)
{
	return atomic_fetch_add_explicit(&op->events, 1, relaxed) + 1;
}

void trace_kernel_start(struct trace_op *op, unsigned channel)
{
	struct trace_channel *at = &op->channel[channel % TRACE_CHANNELS];

	op->started |= 1ull << channel % TRACE_CHANNELS;
	at->start_number = (uint16_t)next_number(op);
	at->start_tick = clock_ticks();
}

/* NCCL reports the GPU's clock and the end of the event in one breath: two numbers, one time. */
void trace_kernel_stop(struct trace_op *op, unsigned channel)
{
	struct trace_channel *at = &op->channel[channel % TRACE_CHANNELS];

	op->stopped |= 1ull << channel % TRACE_CHANNELS;
	at->stop_number = (uint16_t)(next_number(op) + 1);
	atomic_fetch_add_explicit(&op->events, 1, relaxed);
	at->stop_tick = clock_ticks();
}

void trace_app_stop(struct trace_op *op, uint32_t generation)
{
	if (atomic_load_explicit(&op->generation, relaxed) != generation)
		return;
	atomic_store_explicit(&op->stop_tick, clock_ticks(), relaxed);
	atomic_store_explicit(&op->stop_number, next_number(op), relaxed);
	/* Release: a reader that sees the generation sees the two above. */
	atomic_store_explicit(&op->stop_generation, generation, memory_order_release);
}

void trace_copy(struct trace_op *to, const struct trace_op *from)
{
	if (!from) {
		atomic_store_explicit(&to->generation, 0, relaxed);
		return;
	}
	uint32_t stop_generation =
	    atomic_load_explicit(&from->stop_generation, memory_order_acquire);

	to->start_tick = from->start_tick;
	to->started = from->started;
	to->stopped = from->stopped;
	to->user_tag = from->user_tag;
	memcpy(to->kernel_variant, from->kernel_variant, sizeof(to->kernel_variant));
	atomic_store_explicit(&to->generation, atomic_load_explicit(&from->generation, relaxed),
	                      relaxed);
	atomic_store_explicit(&to->stop_generation, stop_generation, relaxed);
	atomic_store_explicit(&to->stop_tick, atomic_load_explicit(&from->stop_tick, relaxed),
	                      relaxed);
	atomic_store_explicit(&to->stop_number, atomic_load_explicit(&from->stop_number, relaxed),
	                      relaxed);
	for (uint64_t left = from->started & from->stopped; left; left &= left - 1) {
		unsigned channel = (unsigned)__builtin_ctzll(left);

		to->channel[channel] = from->channel[channel];
	}
}
