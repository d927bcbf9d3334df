/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/coll.h"

#include "base/clock.h"
#include "box/bandwidth.h"
#include "hot/labels.h"
#include "hot/memo.h"
#include "hot/skew.h"
#include "hot/slots.h"
#include "hot/start.h"

#define relaxed memory_order_relaxed
#define likely track_likely
#define INLINE static inline __attribute__((always_inline))
/* A call of it is a jump: the quick way needs no frame for it. */
#define APART __attribute__((noinline)) static

APART int coll_slowly(struct track *track, void *context, const struct abi_coll *coll,
                      bool symmetric, void **handle)
{
	*handle = track_operation(track, context,
	                          &(struct event){ .peer = EVENT_NO_PEER,
	                                           .func = coll->func,
	                                           .datatype = coll->datatype,
	                                           .algo = coll->algo,
	                                           .proto = coll->proto,
	                                           .count = coll->count,
	                                           .sequence = coll->sequence,
	                                           .root = coll->root,
	                                           .symmetric = symmetric,
	                                           .channels = coll->channels });
	return 0;
}

/* Whether the symmetric collective that is told now is in the same plan as the one before. */
static bool is_of_same_plan(struct track *track, const struct track_comm *app)
{
	uint64_t before = atomic_load_explicit(&app->symmetric, relaxed);

	if (!before || atomic_load_explicit(&app->symmetric_plan, relaxed) !=
	                   atomic_load_explicit(&app->plan, relaxed))
		return false;
	struct box_op *op = &track->ops[handle_slot(before)];

	/* Whose slot serves another by now has ended before NCCL told all of its plan: too late. */
	if (atomic_load_explicit(&op->generation, memory_order_acquire) ==
	    handle_generation(before))
		atomic_store_explicit(&op->peer_entry, BOX_ENTRY_PLAN, relaxed);
	return true;
}

/* NCCL 2.31 and later run a captured one by a kernel that tells nothing, whatever channels are
 * announced. Those of one plan are one kernel, whose events are the first one's: nobody knows what
 * each of them took. */
int track_symmetric_coll(struct track *track, void *context, void *call,
                         const struct abi_coll *coll, void **handle)
{
	struct abi_coll told = *coll;
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (comm == UINT32_MAX)
		return coll_slowly(track, context, coll, true, handle);
	struct track_comm *app = &track->comms[comm];

	if (handle_kind(handle_bits(call)) == HANDLE_CAPTURED || is_of_same_plan(track, app))
		told.channels = 0;
	coll_slowly(track, context, &told, true, handle);
	if (*handle) {
		atomic_store_explicit(&app->symmetric, handle_bits(*handle), relaxed);
		atomic_store_explicit(&app->symmetric_plan,
		                      atomic_load_explicit(&app->plan, relaxed), relaxed);
	}
	return 0;
}

/* What track_operation does for an operation that is followed and like the last one in its memo's
 * place, with what it needs of the communicator in two lines. `tick`: when it was called, or 0.
 * False: not done, nothing is changed. */
INLINE bool coll_fast(struct track *track, struct track_comm *app, unsigned comm,
                      uint32_t comm_generation, const struct abi_coll *coll, uint64_t index,
                      uint64_t tick, void **handle)
{
	const struct track_memo *memo = memo_place(app, coll->func, coll->count);
	uint32_t turn = atomic_load_explicit(&memo->turn, memory_order_acquire);
	uint32_t kind = atomic_load_explicit(&memo->kind, memory_order_acquire);
	uint32_t key = atomic_load_explicit(&memo->key, memory_order_acquire);
	uint64_t bytes =
	    coll->count * atomic_load_explicit(&memo->datatype_bytes, memory_order_acquire);
	bool same = coll->func &&
	            atomic_load_explicit(&memo->func, memory_order_acquire) == coll->func &&
	            atomic_load_explicit(&memo->datatype, memory_order_acquire) == coll->datatype &&
	            atomic_load_explicit(&memo->algo, memory_order_acquire) == coll->algo &&
	            atomic_load_explicit(&memo->proto, memory_order_acquire) == coll->proto;

	if (!likely(same && bytes && coll->channels && bandwidth_size_class(bytes) == kind >> 24 &&
	            atomic_load_explicit(&memo->turn, relaxed) == turn && !(turn & 1)))
		return false;
	uint32_t slot, generation;
	struct box_op *op = slots_take_next(track, app, &slot, &generation);

	if (!likely(op))
		return false;
	atomic_store_explicit(&app->index, index, relaxed);
	*handle = slots_use(
	    op, slot, generation | BOX_OP_USED,
	    &(struct slots_use){ .comm = comm,
	                         .comm_generation = comm_generation,
	                         .key = key,
	                         .kind = (kind & 0xffffffu) | (uint32_t)coll->channels << 24,
	                         .peer = EVENT_NO_PEER,
	                         .peer_entry = PEERS_NONE,
	                         .group = track_group_and_plan(app, 0),
	                         .index = index,
	                         .sequence = coll->sequence,
	                         .bytes = bytes,
	                         .enqueue_tick = tick });
	if (!likely(!labels_is_rooted(kind & 0xffu)))
		labels_root(track, comm, (uint8_t)kind, coll->root, bytes, *handle);
	return true;
}

APART int coll_sampled(struct track *track, void *context, const struct abi_coll *coll,
                       void **handle)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);
	struct track_comm *app = &track->comms[comm];
	uint64_t index = atomic_load_explicit(&app->index, relaxed) + 1;
	uint64_t begin_tick = clock_ticks();

	if (!coll_fast(track, app, comm, generation, coll, index, begin_tick, handle))
		return coll_slowly(track, context, coll, false, handle); /* takes its own time */
	if (index % TRACK_CALL_SAMPLE == 0)
		skew_begin(track, comm, *handle);
	if (index % TRACK_HOT_SAMPLE == 0)
		atomic_fetch_add_explicit(&track->hot_ticks, clock_ticks() - begin_tick, relaxed);
	return 0;
}

int track_coll(struct track *track, void *context, const struct abi_coll *coll, void **handle)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (!likely(comm != UINT32_MAX))
		return coll_slowly(track, context, coll, false, handle);
	struct track_comm *app = &track->comms[comm];
	uint64_t index = atomic_load_explicit(&app->index, relaxed) + 1;

	if (!likely(atomic_load_explicit(&app->context, relaxed) == context && !track->json &&
	            atomic_load_explicit(&track->sample_every, relaxed) <= 1))
		return coll_slowly(track, context, coll, false, handle);
	if (track_takes_call(index))
		return coll_sampled(track, context, coll, handle);
	if (likely(coll_fast(track, app, comm, generation, coll, index, 0, handle)))
		return 0;
	return coll_slowly(track, context, coll, false, handle);
}
