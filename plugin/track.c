/* SPDX-License-Identifier: Apache-2.0 */
#include "track.h"

#include <string.h>

#include "abi.h"
#include "bandwidth.h"
#include "clock.h"
#include "words.h"

#define relaxed memory_order_relaxed

/* A kernel cannot have run longer than the operation has been known, but for the time from its launch to
 * NCCL's first word of it. */
#define PLAUSIBLE_SLACK_NS 1000000000ull

#define HANDLE_KIND 0x3u
enum handle_kind { HANDLE_OPERATION = 1, HANDLE_KERNEL = 2, HANDLE_GROUP = 3 };

struct handle {
	enum handle_kind kind;
	unsigned channel;
	unsigned slot;
	uint32_t generation;
};

static void *handle_pack(enum handle_kind kind, unsigned channel, unsigned slot, uint32_t generation)
{
	return (void *)(uintptr_t)((uint64_t)generation << 20 | (uint64_t)slot << 8 | channel << 2 | kind);
}

static struct handle handle_unpack(const void *pointer)
{
	uint64_t word = (uintptr_t)pointer;

	return (struct handle){
		.kind = (enum handle_kind)(word & HANDLE_KIND),
		.channel = (unsigned)(word >> 2) & 63u,
		.slot = (unsigned)(word >> 8) & (BOX_OPS - 1),
		.generation = (uint32_t)(word >> 20),
	};
}

void *track_context(unsigned comm, uint32_t generation)
{
	return (void *)(uintptr_t)((uint64_t)generation << 16 | (comm + 1));
}

void *track_context_beyond(void)
{
	return (void *)(uintptr_t)0xffff;
}

unsigned track_context_comm(const void *context, uint32_t *generation)
{
	uint64_t word = (uintptr_t)context;
	unsigned comm = (unsigned)(word & 0xffff);

	*generation = (uint32_t)(word >> 16);
	return comm >= 1 && comm <= BOX_LIVE_COMMS ? comm - 1 : UINT32_MAX;
}

void track_init(struct track *track, struct box *box, uint64_t ns_per_tick_q32, bool p2p)
{
	memset(track, 0, sizeof(*track));
	track->box = box;
	track->ns_per_tick_q32 = ns_per_tick_q32;
	track->p2p = p2p;
	for (unsigned slot = 0; slot < BOX_OPS; slot++)
		atomic_store_explicit(&box->ops[slot].next_free, slot + 1 < BOX_OPS ? slot + 2 : 0,
				      relaxed);
	atomic_store(&track->free_head, 1);
	atomic_store(&track->active, true);
}

/* The tag in the upper half changes with every pop, so that a slot that was popped and pushed in between is
 * noticed. */
static struct box_op *slot_pop(struct track *track)
{
	uint64_t head = atomic_load_explicit(&track->free_head, memory_order_acquire);

	for (int tries = 0; tries < 64; tries++) {
		uint32_t first = (uint32_t)head;

		if (!first)
			return NULL;
		struct box_op *op = &track->box->ops[first - 1];
		uint64_t next = ((head >> 32) + 1) << 32 | atomic_load_explicit(&op->next_free, relaxed);

		if (atomic_compare_exchange_weak_explicit(&track->free_head, &head, next,
							  memory_order_acq_rel, memory_order_acquire))
			return op;
	}
	return NULL;
}

static void slot_push(struct track *track, struct box_op *op)
{
	uint32_t self = (uint32_t)(op - track->box->ops) + 1;
	uint64_t head = atomic_load_explicit(&track->free_head, relaxed);
	uint64_t next;

	/* Unbounded in form only: each failure means that another thread went through. */
	do {
		atomic_store_explicit(&op->next_free, (uint32_t)head, relaxed);
		next = (head & ~0xffffffffull) | self;
	} while (!atomic_compare_exchange_weak_explicit(&track->free_head, &head, next,
							memory_order_release, relaxed));
}

void track_free(struct track *track, struct box_op *op)
{
	atomic_fetch_add_explicit(&op->generation, 1, memory_order_release); /* even: free */
	slot_push(track, op);
}

/* Sets a flag of the use that `generation` means. Returns the flags before, 0 when that use is over. */
static uint32_t slot_mark(struct box_op *op, uint32_t generation, uint32_t flag)
{
	uint32_t flags = atomic_load_explicit(&op->flags, memory_order_acquire);

	do {
		if (flags >> BOX_OP_FLAG_BITS != (generation & (UINT32_MAX >> BOX_OP_FLAG_BITS)))
			return 0;
	} while (!atomic_compare_exchange_weak_explicit(&op->flags, &flags, flags | flag,
							memory_order_acq_rel, memory_order_acquire));
	return flags;
}

bool track_claim(struct box_op *op, uint32_t generation)
{
	uint32_t before = slot_mark(op, generation, BOX_OP_CLAIMED);

	return (before & BOX_OP_USED) && !(before & BOX_OP_CLAIMED);
}

void track_complete(struct track *track, struct box_op *op, uint32_t generation)
{
	struct box *box = track->box;
	uint64_t start = atomic_load_explicit(&op->gpu_start_ns, relaxed);
	uint64_t stop = atomic_load_explicit(&op->gpu_stop_ns, relaxed);
	uint32_t key = atomic_load_explicit(&op->key, relaxed);
	struct box_comm *comm = &box->comms[atomic_load_explicit(&op->comm, relaxed)];
	uint64_t now = clock_ticks();
	uint64_t known_ns = clock_ticks_to_ns(now - atomic_load_explicit(&op->enqueue_tick, relaxed),
					      track->ns_per_tick_q32);

	if (!track_claim(op, generation))
		return;
	if (atomic_load_explicit(&comm->generation, relaxed) !=
	    atomic_load_explicit(&op->comm_generation, relaxed)) {
		track_drop(track, BOX_DROP_EXPIRED); /* its communicator's record serves another by now */
	} else {
		if (stop <= start || stop - start > known_ns + PLAUSIBLE_SLACK_NS)
			track_drop(track, BOX_DROP_IMPLAUSIBLE);
		else if (key != KEYS_NONE)
			keys_account(box, key, op, stop - start);
		atomic_fetch_add_explicit(&comm->completed, 1, relaxed);
		keys_raise_to(&comm->last_sequence, atomic_load_explicit(&op->index, relaxed));
		atomic_store_explicit(&comm->last_progress_tick, now, relaxed);
	}
	track_free(track, op);
}

static void *operation_start(struct track *track, void *context, const struct event *event)
{
	uint32_t generation;
	unsigned comm_index = track_context_comm(context, &generation);
	uint64_t bytes = event->count * words_datatype_bytes(event->datatype);

	if (comm_index == UINT32_MAX) {
		if (context)
			track_drop(track, BOX_DROP_NO_COMM);
		return NULL;
	}
	struct box_comm *comm = &track->box->comms[comm_index];

	if (atomic_load_explicit(&comm->generation, relaxed) != generation) {
		track_drop(track, BOX_DROP_STALE); /* the communicator is gone, its record serves another */
		return NULL;
	}
	if (event->peer >= 0 && !track->p2p)
		return NULL;
	if (!event->channels || !bytes || event->peer == comm->rank) {
		track_drop(track, BOX_DROP_UNTIMED); /* NCCL runs no timed kernel for it */
		return NULL;
	}
	struct key_words words = { comm_index, words_func(event->func),
				   (uint8_t)bandwidth_size_class(bytes), words_algo(event->algo),
				   words_proto(event->proto) };
	uint32_t key = keys_find(&track->keys, track->box, &words);
	struct box_op *op = slot_pop(track);

	if (key == KEYS_NONE)
		track_drop(track, BOX_DROP_NO_KEY);
	if (!op) {
		track_drop(track, BOX_DROP_NO_SLOT);
		return NULL;
	}
	atomic_store_explicit(&op->comm, comm_index, relaxed);
	atomic_store_explicit(&op->comm_generation, generation, relaxed);
	atomic_store_explicit(&op->key, key, relaxed);
	atomic_store_explicit(&op->kind,
			      (uint32_t)(words.func | words.algo << 8 | words.proto << 16) |
				      (uint32_t)event->channels << 24, relaxed);
	atomic_store_explicit(&op->index,
			      atomic_fetch_add_explicit(&comm->enqueued, 1, relaxed) + 1, relaxed);
	atomic_store_explicit(&op->sequence, event->sequence, relaxed);
	atomic_store_explicit(&op->bytes, bytes, relaxed);
	atomic_store_explicit(&op->enqueue_tick, clock_ticks(), relaxed);
	atomic_store_explicit(&op->event_tick, 0, relaxed);
	atomic_store_explicit(&op->gpu_start_ns, 0, relaxed);
	atomic_store_explicit(&op->gpu_stop_ns, 0, relaxed);
	atomic_store_explicit(&op->started_channels, 0, relaxed);
	atomic_store_explicit(&op->stopped_channels, 0, relaxed);
	atomic_store_explicit(&op->peer, event->peer, relaxed);
	generation = atomic_load_explicit(&op->generation, relaxed) + 1;
	atomic_store_explicit(&op->flags, generation << BOX_OP_FLAG_BITS | BOX_OP_USED, memory_order_release);
	atomic_store_explicit(&op->generation, generation, memory_order_release);
	return handle_pack(HANDLE_OPERATION, 0, (unsigned)(op - track->box->ops), generation);
}

/* The slot of a handle, or NULL (and counted) when its operation is over. */
static struct box_op *handle_op(struct track *track, struct handle handle)
{
	struct box_op *op = &track->box->ops[handle.slot];

	if (!(handle.generation & 1) ||
	    atomic_load_explicit(&op->generation, memory_order_acquire) != handle.generation) {
		track_drop(track, BOX_DROP_STALE);
		return NULL;
	}
	return op;
}

static void *kernel_start(struct track *track, const struct event *event)
{
	struct handle parent = handle_unpack(event->parent);
	struct box_op *op;

	if (parent.kind != HANDLE_OPERATION)
		return NULL;
	op = handle_op(track, parent);
	if (!op)
		return NULL;
	if (event->channel >= ABI_MAX_CHANNELS) {
		track_drop(track, BOX_DROP_IMPLAUSIBLE);
		return NULL;
	}
	/* The channels of one operation are reported by one thread, so plain loads and stores do. */
	uint64_t channels = atomic_load_explicit(&op->started_channels, relaxed);

	if (!channels)
		atomic_fetch_add_explicit(
			&track->box->comms[atomic_load_explicit(&op->comm, relaxed)].started, 1, relaxed);
	atomic_store_explicit(&op->started_channels, channels | 1ull << event->channel, relaxed);
	uint64_t start = atomic_load_explicit(&op->gpu_start_ns, relaxed);

	if (!start || event->gpu_ns < start)
		atomic_store_explicit(&op->gpu_start_ns, event->gpu_ns, relaxed);
	return handle_pack(HANDLE_KERNEL, event->channel, parent.slot, parent.generation);
}

void *track_start(struct track *track, void *context, const struct event *event)
{
	if (!atomic_load_explicit(&track->active, relaxed))
		return NULL;
	switch (event->kind) {
	case EVENT_OPERATION:
		return operation_start(track, context, event);
	case EVENT_KERNEL:
		return kernel_start(track, event);
	case EVENT_GROUP:
		return handle_pack(HANDLE_GROUP, 0, 0, 0);
	default:
		return NULL;
	}
}

void track_enqueued(struct track *track, void *pointer)
{
	struct handle handle = handle_unpack(pointer);

	if (handle.kind != HANDLE_OPERATION || !atomic_load_explicit(&track->active, relaxed))
		return;
	struct box_op *op = handle_op(track, handle);

	if (op && slot_mark(op, handle.generation, BOX_OP_APP_DONE) & BOX_OP_GPU_DONE)
		track_complete(track, op, handle.generation);
}

void track_kernel_stop(struct track *track, void *pointer, uint64_t gpu_ns)
{
	struct handle handle = handle_unpack(pointer);

	if (handle.kind != HANDLE_KERNEL || !atomic_load_explicit(&track->active, relaxed))
		return;
	struct box_op *op = handle_op(track, handle);

	if (!op)
		return;
	uint64_t channel = 1ull << handle.channel;
	uint64_t stopped = atomic_load_explicit(&op->stopped_channels, relaxed);
	uint64_t started = atomic_load_explicit(&op->started_channels, relaxed);
	unsigned channels = atomic_load_explicit(&op->kind, relaxed) >> 24;

	/* NCCL <= 2.30 can stop what it did not start, with the handle of the channel's last operation. */
	if ((stopped & channel) || !(started & channel)) {
		track_drop(track, BOX_DROP_STALE);
		return;
	}
	stopped |= channel;
	atomic_store_explicit(&op->stopped_channels, stopped, relaxed);
	if (gpu_ns > atomic_load_explicit(&op->gpu_stop_ns, relaxed))
		atomic_store_explicit(&op->gpu_stop_ns, gpu_ns, relaxed);
	if ((unsigned)__builtin_popcountll(stopped) < channels || (started & ~stopped))
		return;
	if (slot_mark(op, handle.generation, BOX_OP_GPU_DONE) & BOX_OP_APP_DONE)
		track_complete(track, op, handle.generation);
}
