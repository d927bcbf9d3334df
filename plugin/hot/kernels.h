/* SPDX-License-Identifier: Apache-2.0 */
/* hot/kernels.h - kernel events: a channel of an operation begins and ends.
 *
 * By far the most events are these, so the usual case is inline. All functions take any handle, and
 * give NULL when there is nothing to follow. One thread reports the channels of one operation.
 */
#ifndef NCCL_INSPECTOR_HOT_KERNELS_H
#define NCCL_INSPECTOR_HOT_KERNELS_H

#include "hot/atomics.h"
#include "hot/complete.h"
#include "hot/handle.h"
#include "hot/state.h"
#include "nccl/abi.h"

/* For the inline functions below, which cannot do with a few instructions. Like NCCL's own
 * functions those of type int give 0, so that their caller ends with a jump and needs no frame. */
void *track_kernel_start_slowly(struct track *track, void *operation, unsigned channel,
                                uint64_t gpu_ns);
int track_kernel_stop_slowly(struct track *track, void *kernel, uint64_t gpu_ns);

/* The slot of a handle: some slot, whatever the handle. */
static inline struct box_op *track_fast_op(struct track *track, uint64_t bits)
{
	char *ops = (char *)atomic_load_explicit(&track->fast_ops, memory_order_relaxed);

	return (struct box_op *)(ops + (bits & (uint64_t)(BOX_OPS - 1) << HANDLE_SLOT_SHIFT));
}

/* One channel begins on the GPU. False: nothing is done yet, and track_kernel_start_slowly must do
 * it.
 *
 * Between its check and its stores the slot may pass to another operation, but only if the pool is
 * full and the application's thread gives this operation up just now (TRACK_SLOT_HANDED_ON); what
 * the sweep gives up rests first. One thread reports the channels of one operation, so plain loads
 * and stores will do. */
static inline bool track_kernel_start_fast(struct track *track, void *operation, unsigned channel,
                                           uint64_t gpu_ns, void **handle)
{
	uint64_t bits = handle_bits(operation);
	struct box_op *op = track_fast_op(track, bits);

	/* Where nothing is to be done all slots have 0 for a handle. */
	if (!track_likely(bits && atomic_load_explicit(&op->handle, memory_order_acquire) == bits &&
	                  channel < 64))
		return false;
	uint64_t started = atomic_load_explicit(&op->started_channels, memory_order_relaxed);

	/* What the application's thread has written is wanted at the end: have it here by then. */
	if (!track_likely(started))
		prefetch_to_write(op);
	atomic_store_explicit(&op->started_channels, started | 1ull << channel,
	                      memory_order_relaxed);
	owned_lower(&op->gpu_start_ns, gpu_ns);
	*handle = handle_of(bits + (HANDLE_KERNEL - HANDLE_OPERATION) +
	                    ((uint64_t)channel << HANDLE_CHANNEL_SHIFT));
	return true;
}

/* One channel begins on the GPU at `gpu_ns` (v3: of our clock). Returns its handle; NULL: it is not
 * followed. */
static inline void *track_kernel_start(struct track *track, void *operation, unsigned channel,
                                       uint64_t gpu_ns)
{
	void *handle;

	return track_kernel_start_fast(track, operation, channel, gpu_ns, &handle)
		   ? handle
		   : track_kernel_start_slowly(track, operation, channel, gpu_ns);
}

/* How many bits are set. The oldest processors lack the instruction. */
static inline unsigned track_count(const struct track *track, uint64_t bits)
{
#if defined(__x86_64__)
	if (track_likely(track->has_popcnt)) {
		__asm__("popcnt %0, %0" : "+r"(bits) : : "cc");
		return (unsigned)bits;
	}
#else
	(void)track;
#endif
	bits -= bits >> 1 & 0x5555555555555555u;
	bits = (bits & 0x3333333333333333u) + (bits >> 2 & 0x3333333333333333u);
	return (unsigned)(((bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fu) * 0x0101010101010101u >> 56);
}

/* One channel ended. Gives 0. NCCL <= 2.30 can stop what it did not start, with the handle of the
 * channel's last operation. */
static inline __attribute__((always_inline)) int track_kernel_stop(struct track *track,
                                                                   void *kernel, uint64_t gpu_ns)
{
	uint64_t bits = handle_bits(kernel);
	struct box_op *op = track_fast_op(track, bits);
	uint64_t handle = atomic_load_explicit(&op->handle, memory_order_acquire);
	uint64_t stopped = atomic_load_explicit(&op->stopped_channels, memory_order_relaxed);
	uint64_t started = atomic_load_explicit(&op->started_channels, memory_order_relaxed);

	unsigned channel;

	if (!track_likely(handle_is_channel_of(bits, handle, &channel) && started >> channel & 1 &&
	                  !(stopped >> channel & 1)))
		return track_kernel_stop_slowly(track, kernel, gpu_ns);
	stopped |= 1ull << channel;
	owned_raise(&op->gpu_stop_ns, gpu_ns);
	/* After the time: the sweep completes what it finds stopped. */
	atomic_store_explicit(&op->stopped_channels, stopped, memory_order_release);
	if (started == stopped && track_count(track, started) >=
	                              atomic_load_explicit(&op->kind, memory_order_relaxed) >> 24)
		return track_last_kernel(track, op, handle_generation(bits));
	return 0;
}

/* A phase of a channel (v7) begins. Returns a handle for the first one only, which is waiting for
 * the peers. */
static inline void *track_phase_start(struct track *track, void *kernel, unsigned phase)
{
	uint64_t bits = handle_bits(kernel);

	return phase == ABI_PHASE_SYNC && handle_is_used(bits, HANDLE_KERNEL) &&
	               atomic_load_explicit(&track->active, memory_order_relaxed)
		   ? handle_of(handle_as(bits, HANDLE_PHASE))
		   : NULL;
}

/* A phase of a channel ended; `handle`: of track_phase_start. */
void track_phase_stop(struct track *track, void *handle, uint64_t gpu_ns);

#endif
