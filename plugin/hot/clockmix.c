/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/clockmix.h"

#include "nccl/abi.h"

#define relaxed memory_order_relaxed

/* Interfaces: v3 is NCCL 2.26, v4 2.27, v5 2.28, v6 2.29 and 2.30, v7 2.31 and later. 0: not known,
 * nothing is. */
static bool is_between(const struct track *track, unsigned first, unsigned last)
{
	return track->options.api >= first && track->options.api <= last;
}

void clockmix_mark(struct track *track, unsigned comm, uint64_t since, enum box_mixed why)
{
	struct box_comm *record = &track->box->comms[comm];
	uint64_t none = 0;

	if (!atomic_compare_exchange_strong(&track->mixes[comm].since, &none, since))
		return;
	atomic_store_explicit(&record->mixed_why, why, relaxed);
	atomic_store_explicit(&record->mixed_since, since, memory_order_release);
	track_end_comm(track, comm); /* its operations take the slow way */
}

static uint64_t next_index(const struct track *track, unsigned comm)
{
	return atomic_load_explicit(&track->comms[comm].index, relaxed) + 1;
}

/* nProxyOps is 0 for it (2.26 to 2.30, addP2pToPlan): its kernel counts, the host does not. In
 * place there is no work, nor an event.
 *
 * The times cannot be won back by subtracting the shift. It is of each channel, one more for each
 * work with itself, and the host does not wait: it finds the counter of an earlier work in the
 * place (any of the last 64) and takes what is there at once, when the kernel may not have begun.
 * The operation's own times are in another place, which is read for the operation that comes as
 * many works later on that channel, if the application calls that many, and within 64 works of its
 * end; each operation would have to wait for that, with its slot. And which works a channel has had
 * is not told: a Send and a Recv of one work are told as two, a part without a step not at all, and
 * an end without its begin is lost.
 *
 * Channels that have had no work with itself are right. Which ones have is known from 2.28 on
 * (ncclP2pChannelBaseForRound: the first round, so channels 0 to those that are announced, less
 * one), and before it depends on how many channels NCCL has for Sends, which it does not tell. Of
 * an operation that has others besides, the begin and end of those would be its time, but for
 * channels that are later than they are: nobody has measured that on GPUs. */
void clockmix_self(struct track *track, unsigned comm, uint64_t index)
{
	if (is_between(track, 3, 6))
		clockmix_mark(track, comm, index, BOX_MIXED_SELF);
}

void clockmix_captured(struct track *track, void *context)
{
	int *mask = atomic_load_explicit(&track->mask, relaxed);
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (!is_between(track, 5, 6) || comm == UINT32_MAX)
		return;
	/* What is captured without kernel events is counted by the host at once, and by the kernel
	 * at each launch. */
	if (mask && !(__atomic_load_n(mask, __ATOMIC_RELAXED) & ABI_KERNEL_CH))
		clockmix_mark(track, comm, next_index(track, comm), BOX_MIXED_UNASKED);
	track_forget_known(&track->comms[comm]); /* so that each call is looked at from now on */
	atomic_store_explicit(&track->comms[comm].graph, CLOCKMIX_CAPTURED, relaxed);
}

/* To 2.30 the host counts the launch of a graph only if nothing was called since the capture
 * (planner.persistent). Else it gives the launch the times of what it counted last, and what comes
 * later those of the launch. */
void clockmix_replayed(struct track *track, void *context)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (comm != UINT32_MAX &&
	    atomic_load_explicit(&track->comms[comm].graph, relaxed) == CLOCKMIX_NOT_LATEST)
		clockmix_mark(track, comm, next_index(track, comm), BOX_MIXED_GRAPH);
}

/* From 2.31 on the host counts what has the bit of kernel events in its mask. A Broadcast's task
 * loses the mask, unless NCCL_ALLGATHERV_ENABLE is 0. */
void clockmix_broadcast(struct track *track, unsigned comm)
{
	if (track->options.api >= 7)
		clockmix_mark(track, comm, next_index(track, comm), BOX_MIXED_BROADCAST);
}

bool clockmix_broadcast_told(struct track *track, unsigned comm)
{
	struct box_comm *record = &track->box->comms[comm];

	if (atomic_load_explicit(&record->mixed_why, relaxed) != BOX_MIXED_BROADCAST)
		return false;
	atomic_store_explicit(&record->mixed_why, BOX_MIXED_NOT, relaxed);
	atomic_store_explicit(&record->mixed_since, 0, relaxed);
	atomic_store_explicit(&track->mixes[comm].since, 0, relaxed);
	track_follow_comm(track, comm);
	return true;
}

void clockmix_unasked(struct track *track)
{
	for (unsigned i = 0; i < BOX_LIVE_COMMS && track->options.api >= 3; i++)
		if (atomic_load_explicit(&track->box->comms[i].state, relaxed) == BOX_COMM_LIVE)
			clockmix_mark(track, i, next_index(track, i), BOX_MIXED_UNASKED);
}

/* v3 and v4 do not tell what is captured: this is how a graph shows that was captured between two
 * samples. */
void clockmix_untold(struct track *track, const struct box_op *op)
{
	if (is_between(track, 3, 4) && atomic_load_explicit(&track->sample_count, relaxed))
		clockmix_mark(track, atomic_load_explicit(&op->comm, relaxed) % BOX_LIVE_COMMS,
		              atomic_load_explicit(&op->index, relaxed), BOX_MIXED_UNASKED);
}

static void copy_end(struct clockmix_end *to, const struct clockmix_end *from)
{
	atomic_store_explicit(&to->start_ns, atomic_load_explicit(&from->start_ns, relaxed),
	                      relaxed);
	atomic_store_explicit(&to->told, atomic_load_explicit(&from->told, relaxed), relaxed);
}

/* Whether a kernel began before one of an earlier plan that was over when this one was told. Whose
 * end NCCL's thread sees too late has the time of a later one, but those between were told by
 * then. */
static bool began_before(const struct clockmix_end *end, uint64_t index, uint64_t start)
{
	return start < atomic_load_explicit(&end->start_ns, relaxed) &&
	       index > atomic_load_explicit(&end->told, relaxed);
}

/* v4 does not tell what is captured: a graph's launch that the host does not count shows by times
 * of an earlier one. */
static bool is_in_order(struct track *track, unsigned comm, bool is_next, uint64_t index,
                        uint64_t start)
{
	struct clockmix *mix = &track->mixes[comm];

	if (is_next) {
		copy_end(&mix->oldest, &mix->older);
		copy_end(&mix->older, &mix->latest);
	}
	if (began_before(&mix->older, index, start) || began_before(&mix->oldest, index, start))
		return false;
	if (start > atomic_load_explicit(&mix->latest.start_ns, relaxed)) {
		atomic_store_explicit(&mix->latest.start_ns, start, relaxed);
		atomic_store_explicit(&mix->latest.told,
		                      atomic_load_explicit(&track->comms[comm].index, relaxed),
		                      relaxed);
	}
	return true;
}

bool clockmix_look(struct track *track, unsigned comm, const struct box_op *op, bool is_next)
{
	uint64_t since = atomic_load_explicit(&track->mixes[comm].since, relaxed);
	uint64_t index = atomic_load_explicit(&op->index, relaxed);

	if (since && index >= since)
		return false;
	if (!is_between(track, 4, 4) ||
	    is_in_order(track, comm, is_next, index,
	                atomic_load_explicit(&op->gpu_start_ns, relaxed)))
		return true;
	clockmix_mark(track, comm, index, BOX_MIXED_GRAPH);
	return false;
}

static void forget(struct clockmix_end *end)
{
	atomic_store_explicit(&end->start_ns, 0, relaxed);
	atomic_store_explicit(&end->told, 0, relaxed);
}

void clockmix_new_comm(struct track *track, unsigned comm)
{
	struct clockmix *mix = &track->mixes[comm];

	forget(&mix->latest);
	forget(&mix->older);
	forget(&mix->oldest);
	atomic_store_explicit(&track->comms[comm].graph, CLOCKMIX_NO_GRAPH, relaxed);
	atomic_store_explicit(&mix->plan, atomic_load_explicit(&track->comms[comm].plan, relaxed),
	                      relaxed);
	atomic_store_explicit(&mix->since, 0, relaxed);
	atomic_store_explicit(&track->box->comms[comm].mixed_why, BOX_MIXED_NOT, relaxed);
	atomic_store_explicit(&track->box->comms[comm].mixed_since, 0, relaxed);
}
