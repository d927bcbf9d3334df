/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/skew.h"

#include "hot/atomics.h"
#include "hot/handle.h"

#define relaxed memory_order_relaxed
/* Nothing that is believed takes longer than this: 18 minutes. */
#define TIME_NS_MAX (1ull << 40)

static unsigned comm_of(const struct box_op *op)
{
	return atomic_load_explicit(&op->comm, relaxed) % BOX_LIVE_COMMS;
}

/* Where the times of an operation go, and which of its channels `kernel` is; NULL: it is not looked
 * at. */
static struct skew_open *open_of(struct track *track, const struct box_op *op, uint64_t kernel,
                                 unsigned *channel)
{
	struct skew_open *open = &track->skews[comm_of(op)];

	return handle_is_channel_of(kernel, atomic_load_explicit(&open->operation, relaxed),
	                            channel)
		   ? open
		   : NULL;
}

void skew_begin(struct track *track, unsigned comm, void *operation)
{
	uint64_t bits = handle_bits(operation);
	struct box_op *op = &track->ops[handle_slot(bits)];

	if (!operation || track->options.timing != BOX_TIMING_GPU ||
	    handle_kind(bits) != HANDLE_OPERATION)
		return;
	atomic_store_explicit(&track->skews[comm].operation, bits, relaxed);
	atomic_store_explicit(
	    &op->handle, atomic_load_explicit(&op->handle, relaxed) | HANDLE_LOOKED_AT, relaxed);
}

void skew_stop(struct track *track, const struct box_op *op, uint64_t kernel, uint64_t gpu_ns)
{
	unsigned channel;
	struct skew_open *open = open_of(track, op, kernel, &channel);

	if (open)
		atomic_store_explicit(&open->stop_ns[channel], gpu_ns, relaxed);
}

/* Adds the times of the channels with those bits, of which the first one ended at `first_ns`. */
static void add(struct box_skew *skew, const struct skew_open *open, uint64_t channels,
                uint64_t first_ns, uint64_t time_ns)
{
	for (uint64_t left = channels; left; left &= left - 1) {
		unsigned channel = (unsigned)__builtin_ctzll(left);

		owned_add(&skew->late_ns[channel],
		          atomic_load_explicit(&open->stop_ns[channel], relaxed) - first_ns);
	}
	owned_or(&skew->channels, channels);
	owned_add(&skew->time_ns, time_ns);
	owned_add(&skew->ops, 1);
}

void skew_over(struct track *track, const struct box_op *op, uint64_t kernel)
{
	unsigned comm = comm_of(op), channel;
	struct skew_open *open = open_of(track, op, kernel, &channel);
	uint64_t channels = atomic_load_explicit(&op->started_channels, relaxed);
	uint64_t start = atomic_load_explicit(&op->gpu_start_ns, relaxed);
	uint64_t first = UINT64_MAX, last = 0;

	if (!open)
		return;
	atomic_store_explicit(&open->operation, 0, relaxed);
	for (uint64_t left = channels; left; left &= left - 1) {
		uint64_t stop =
		    atomic_load_explicit(&open->stop_ns[__builtin_ctzll(left)], relaxed);

		first = stop < first ? stop : first;
		last = stop > last ? stop : last;
	}
	if (!(channels & (channels - 1)) || first <= start || last - start > TIME_NS_MAX ||
	    atomic_load_explicit(&track->box->comms[comm].generation, relaxed) !=
	        atomic_load_explicit(&op->comm_generation, relaxed))
		return;
	add(&track->box->skews[comm], open, channels, first, last - start);
}

void skew_new_comm(struct track *track, unsigned comm)
{
	struct box_skew *skew = &track->box->skews[comm];

	atomic_store_explicit(&track->skews[comm].operation, 0, relaxed);
	atomic_store_explicit(&skew->ops, 0, relaxed);
	atomic_store_explicit(&skew->time_ns, 0, relaxed);
	atomic_store_explicit(&skew->channels, 0, relaxed);
	for (unsigned channel = 0; channel < BOX_CHANNELS; channel++)
		atomic_store_explicit(&skew->late_ns[channel], 0, relaxed);
}
