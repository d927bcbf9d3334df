/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/kernels.h"

#include "hot/skew.h"
#include "hot/slotless.h"
#include "hot/trace.h"

#define relaxed memory_order_relaxed

/* The operation of a handle of that kind, NULL (and counted) when it is over. */
static struct box_op *op_of(struct track *track, uint64_t bits, enum handle_kind kind)
{
	if (handle_kind(bits) != kind || !atomic_load_explicit(&track->active, relaxed))
		return NULL;
	struct box_op *op = &track->ops[handle_slot(bits)];

	if (!handle_is_used(bits, kind) ||
	    atomic_load_explicit(&op->generation, memory_order_acquire) !=
	        handle_generation(bits)) {
		track_drop(track, BOX_DROP_STALE);
		return NULL;
	}
	return op;
}

/* The first channel of an operation whose slot was handed on begins: what a thread has stored there
 * in the name of the operation before goes. Only what it stores after that stays; it would be the
 * thread of another communicator, that stood still between two of its instructions. */
static void forget_the_one_before(struct box_op *op)
{
	uint64_t handle = atomic_load_explicit(&op->handle, relaxed);

	if (!(handle & HANDLE_HANDED_ON))
		return;
	atomic_store_explicit(&op->started_channels, 0, relaxed);
	atomic_store_explicit(&op->gpu_start_ns, 0, relaxed);
	atomic_store_explicit(&op->handle, handle & ~HANDLE_HANDED_ON, relaxed);
}

void *track_kernel_start_slowly(struct track *track, void *operation, unsigned channel,
                                uint64_t gpu_ns)
{
	uint64_t bits = handle_bits(operation);

	if (handle_kind(bits) == HANDLE_SLOTLESS)
		return slotless_kernel_start(track, bits, gpu_ns);
	struct box_op *op = op_of(track, bits, HANDLE_OPERATION);

	if (!op)
		return NULL;
	if (channel >= ABI_MAX_CHANNELS) {
		track_drop(track, BOX_DROP_IMPLAUSIBLE);
		return NULL;
	}
	forget_the_one_before(op);
	owned_or(&op->started_channels, 1ull << channel);
	owned_lower(&op->gpu_start_ns, gpu_ns);
	if (track->traces)
		trace_kernel_start(&track->traces[handle_slot(bits)], channel);
	return handle_of(handle_as(bits, HANDLE_KERNEL) | (uint64_t)channel
	                                                      << HANDLE_CHANNEL_SHIFT);
}

int track_kernel_stop_slowly(struct track *track, void *kernel, uint64_t gpu_ns)
{
	uint64_t bits = handle_bits(kernel), bit = 1ull << handle_channel(bits);

	if (handle_kind(bits) == HANDLE_SLOTLESS_KERNEL)
		return slotless_kernel_stop(track, bits, gpu_ns);
	struct box_op *op = op_of(track, bits, HANDLE_KERNEL);

	if (!op)
		return 0;
	uint64_t stopped = atomic_load_explicit(&op->stopped_channels, relaxed);
	uint64_t started = atomic_load_explicit(&op->started_channels, relaxed);

	if (!(started & ~stopped & bit)) {
		track_drop(track, BOX_DROP_STALE);
		return 0;
	}
	owned_raise(&op->gpu_stop_ns, gpu_ns);
	skew_stop(track, op, bits, gpu_ns);
	atomic_store_explicit(&op->stopped_channels, stopped | bit, memory_order_release);
	if (track->traces)
		trace_kernel_stop(&track->traces[handle_slot(bits)], handle_channel(bits));
	if (started != (stopped | bit) ||
	    track_count(track, started) < atomic_load_explicit(&op->kind, relaxed) >> 24)
		return 0;
	skew_over(track, op, bits);
	return track_last_kernel(track, op, handle_generation(bits));
}

void track_phase_stop(struct track *track, void *handle, uint64_t gpu_ns)
{
	struct box_op *op = op_of(track, handle_bits(handle), HANDLE_PHASE);

	if (op)
		owned_lower(&op->synced_ns, gpu_ns);
}
