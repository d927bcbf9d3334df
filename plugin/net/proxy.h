/* SPDX-License-Identifier: Apache-2.0 */
/* net/proxy.h - network detail: what the operations of NCCL's proxy wait for, and what they move,
 * by peer.
 *
 * A proxied operation is what one channel sends to one peer, or receives from it. Up to eight steps
 * of it are under way at a time. They end in the order in which they began, and NCCL says of a step
 * behind another one that it waits for the GPU, whatever it waits for. So the time of an operation
 * counts only for the state of its oldest unfinished step: the sum of all states is the time in
 * which there was one.
 *
 * A step is told in five calls, and a channel has dozens of steps: with NCCL's threads at full
 * speed all that would be the dearest part of the plugin. So the operations that are followed are
 * limited (NET_OPS_A_SECOND): one in `every`, the same for all channels and peers in the long run.
 * NCCL tells next to nothing more of an operation that has got no handle.
 *
 * It is off unless asked for: then NCCL makes none of these calls. The calls about one operation
 * come from one thread, the proxy's. They take no lock, allocate nothing, make no system call and
 * have no unbounded loop; the memory is had at set-up.
 */
#ifndef NCCL_INSPECTOR_NET_PROXY_H
#define NCCL_INSPECTOR_NET_PROXY_H

#include "base/clock.h"
#include "config.h"
#include "hot/handle.h"
#include "hot/state.h"
#include "nccl/abi.h"

/* Followed at one time; a power of two. What comes while all are in use is not followed. */
#define NET_OPS 1024u

/* Followed in a second at most, about, unless there is no budget: 22 calls each (four steps) at 13
 * ns are 0.15 % of a core. */
#define NET_OPS_A_SECOND 5000u
#define NET_EVERY_MOST 65536u /* 300 million a second */

struct net_op {
	_Alignas(64) _Atomic uint32_t generation; /* as box_op.generation: + enum box_op_state */
	_Atomic uint32_t entry;                   /* index of struct box_net */
	/* The oldest unfinished step: since which tick << 3 | state + 1; 0: there is none. */
	_Atomic uint64_t head;
	_Atomic uint64_t states; /* four bits a step: enum box_net_state + 1, 0 when it is over */
	/* Numbers of the oldest unfinished step and of the next one to begin. */
	_Atomic uint32_t first, next;
	_Atomic uint32_t turns; /* changes of the head, in all uses of the slot */
	/* The beat thread's: how it found the slot one round ago. */
	uint32_t seen_generation;
	uint64_t seen_steps;
	uint32_t seen_ended; /* net.ended of its entry */
	/* Rounds in which others of the same peer ended and this one stood still. */
	uint32_t passed;
};

struct net {
	struct track *track;
	struct net_op *ops; /* NULL: off for good */
	enum config_net mode;
	uint32_t pid;
	_Atomic bool on;                      /* NCCL is to be asked for the events */
	uint64_t round_tick;                  /* of the last round */
	uint64_t suspected_tick;              /* when a hang was last suspected */
	_Atomic bool making;                  /* a thread makes an entry: exactly one does */
	_Atomic uint32_t every;               /* one in so many is followed; a power of two */
	uint32_t followed_before;             /* `followed`, at the last round */
	_Alignas(64) _Atomic uint32_t cursor; /* where to look for a free slot */
	_Atomic uint32_t followed;            /* operations so far */
	_Atomic uint32_t ended[BOX_NETS];     /* operations of the entry that are over */
};

/* Gets the memory, unless the mode is off or the interface does not tell the states (before v4).
 * Returns 0, or -errno: then it is off. Under the inspector's lock. */
int net_init(struct net *net, struct track *track, enum config_net mode, unsigned api);

/* The first communicator comes, or again a first one: there were no rounds before. Under the
 * inspector's lock. */
void net_begin(struct net *net);

/* Returns the events to be asked for at present, as bits of the activation mask. */
int net_events(const struct net *net);

/* The next four take any context and any handle, and give NULL if there is nothing to follow. By
 * the proxy's thread. */

/* An operation begins, a part of `task` (any handle). Returns its handle. */
void *net_op_start(struct net *net, void *context, void *task, const struct abi_proxy_op *op);

/* A step of an operation begins. Returns its handle. */
void *net_step_start(struct net *net, void *op);

/* A step has another state. `args`: of v4 and later, or NULL. They have the bytes of the step with
 * ABI_STATE_SEND_WAIT and ABI_STATE_RECV_FLUSH_WAIT; with other states those of an earlier step. */
void net_step_state(struct net *net, void *step, int state, const union abi_state_args *args);

/* An operation or a step is over. */
void net_stop(struct net *net, void *handle);

/* Kinds of handles, beside enum handle_kind. */
enum net_handle { NET_HANDLE_OP = 6, NET_HANDLE_STEP = 7 };

/* Whether a handle may be of an operation or a step of the proxy: NCCL stops every channel of every
 * operation in the same way, so most are not worth a call. */
static inline bool net_is_handle(const void *handle)
{
	return ((uintptr_t)handle & 0xe) == (NET_HANDLE_OP & NET_HANDLE_STEP);
}

/* The rest is for net/proxy.c, net/queues.c and net/proxy_round.c. */

/* Returns the slot of a handle of that kind; NULL for another kind, and (counted) if its operation
 * is over. */
struct net_op *net_op_of(struct net *net, uint64_t bits, enum net_handle kind);

#define NET_HEAD_BITS 3
#define NET_HEAD_STATE ((1u << NET_HEAD_BITS) - 1)
enum net_entry_used { NET_ENTRY_FREE = 0, NET_ENTRY_VALID = 1, NET_ENTRY_TAKEN = 2 };

_Static_assert((unsigned)BOX_NET_STATES <= NET_HEAD_STATE, "a state fits the head");
_Static_assert(sizeof(struct net_op) == 64, "a cache line each");

/* The entry of the box to which an operation adds. */
static inline struct box_net *net_entry(const struct net *net, const struct net_op *op)
{
	return &net->track->box
	            ->nets[atomic_load_explicit(&op->entry, memory_order_relaxed) % BOX_NETS];
}

/* Adds the time from the tick of a head (not 0) to `until_tick` to the entry. */
static inline void net_add(const struct net *net, const struct net_op *op, uint64_t head,
                           uint64_t until_tick)
{
	uint64_t ticks = until_tick - (head >> NET_HEAD_BITS);

	atomic_fetch_add_explicit(&net_entry(net, op)->ns[(head & NET_HEAD_STATE) - 1],
	                          clock_ticks_to_ns(ticks, net->track->ns_per_tick_q32),
	                          memory_order_relaxed);
}

/* Ends a use of a slot. Returns whether the caller was the one that did: exactly one does. */
static inline bool net_give_back(struct net_op *op, uint32_t generation)
{
	return atomic_compare_exchange_strong_explicit(&op->generation, &generation,
	                                               (generation & ~BOX_OP_STATE_MASK) + 4,
	                                               memory_order_release, memory_order_relaxed);
}

#endif
