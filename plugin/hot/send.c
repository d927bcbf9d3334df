/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/send.h"

#include "hot/memo.h"
#include "hot/peers.h"
#include "hot/slots.h"
#include "hot/start.h"

#define relaxed memory_order_relaxed
#define likely track_likely
#define INLINE static inline __attribute__((always_inline))
/* A call of it is a jump: the quick way needs no frame for it. */
#define APART __attribute__((noinline)) static

/* What is told of a Send or Recv, and what its call and its plan got. */
INLINE struct event event_of(const struct abi_p2p *p2p, void *call, void *plan)
{
	return (struct event){
		.peer = p2p->peer,
		.func = p2p->func,
		.datatype = p2p->datatype,
		.count = p2p->count,
		.parent = call,
		.plan = plan,
		.channels = p2p->channels,
	};
}

APART int p2p_slowly(struct track *track, void *context, void *call, void *plan,
                     const struct abi_p2p *p2p, void **handle)
{
	struct event event = event_of(p2p, call, plan);

	*handle = track_operation(track, context, &event);
	return 0;
}

/* Whether it is the only one that was called in its group, which has not returned, and none of it
 * was told. */
INLINE bool is_first_of_one(const struct track_comm *app, unsigned comm, uint64_t call)
{
	uint32_t number = handle_number(call);

	return handle_kind(call) == HANDLE_P2P_CALL && handle_comm(call) == comm &&
	       atomic_load_explicit(&app->open_group, relaxed) == number &&
	       atomic_load_explicit(&app->call_group, relaxed) == number &&
	       atomic_load_explicit(&app->group_calls, relaxed) == 1 &&
	       atomic_load_explicit(&app->lone_group, relaxed) != number;
}

int track_p2p(struct track *track, void *context, void *call, void *plan, const struct abi_p2p *p2p,
              void **handle)
{
	const struct event event = event_of(p2p, call, plan);
	uint32_t comm_generation, slot, generation;
	unsigned comm = handle_context_comm(context, &comm_generation);

	if (!likely(comm != UINT32_MAX))
		return p2p_slowly(track, context, call, plan, p2p, handle);
	struct track_comm *app = &track->comms[comm];
	uint64_t index = atomic_load_explicit(&app->index, relaxed) + 1;
	struct kind kind;

	if (!likely(atomic_load_explicit(&app->context, relaxed) == context && !track->json &&
	            track->options.p2p &&
	            atomic_load_explicit(&track->sample_every, relaxed) <= 1 &&
	            !track_takes_call(index) && event.count && event.channels &&
	            event.peer != track->box->comms[comm].rank &&
	            is_first_of_one(app, comm, handle_bits(call)) &&
	            memo_recall(app, comm, &event, &kind) && kind.datatype_bytes))
		return p2p_slowly(track, context, call, plan, p2p, handle);
	struct box_op *op = slots_take_next(track, app, &slot, &generation);

	if (!likely(op))
		return p2p_slowly(track, context, call, plan, p2p, handle);
	struct peers_call peer =
	    peers_call(&track->peers, track->box, comm, kind.fields.func, event.peer);

	if (!likely(peer.entry != PEERS_NONE))
		track_drop(track, BOX_DROP_NO_PEER);
	atomic_store_explicit(&app->lone_group, handle_number(handle_bits(call)), relaxed);
	atomic_store_explicit(&app->index, index, relaxed);
	*handle = slots_use(op, slot, generation | BOX_OP_USED,
	                    &(struct slots_use){ .comm = comm,
	                                         .comm_generation = comm_generation,
	                                         .key = kind.key,
	                                         .kind = memo_pack(&kind.fields, event.channels),
	                                         .peer = event.peer,
	                                         .peer_entry = peer.entry,
	                                         .group = track_group_and_plan(app, 0),
	                                         .index = index,
	                                         .sequence = peer.number,
	                                         .bytes = event.count * kind.datatype_bytes });
	return 0;
}
