/* SPDX-License-Identifier: Apache-2.0 */
#include "net/proxy_round.h"

#include <math.h>

#include "base/clock.h"

#define relaxed memory_order_relaxed

/* An operation that old: a hang is suspected. Detail is taken until that has been over for so
 * long. */
#define SUSPECT_NS 10000000000ull
#define CALM_NS 60000000000ull
#define PASSED_ROUNDS 60u
#define ROOM_SHARE 0.8 /* of the limit: with twice as many it is not at it again at once */

/* The running time of a state is added, and the state goes on. */
static void add_running(struct net *net, struct net_op *op, uint64_t now)
{
	uint64_t old = atomic_load_explicit(&op->head, relaxed), since = old >> NET_HEAD_BITS;

	if (old && since < now &&
	    atomic_compare_exchange_strong_explicit(
		&op->head, &old, now << NET_HEAD_BITS | (old & NET_HEAD_STATE), relaxed, relaxed))
		net_add(net, op, old, now);
}

static uint64_t ns_of(const struct net *net, uint64_t ticks)
{
	return clock_ticks_to_ns(ticks, net->track->ns_per_tick_q32);
}

static bool is_of_live(const struct box *box, uint32_t comm, uint32_t generation)
{
	const struct box_comm *record = &box->comms[comm % BOX_LIVE_COMMS];

	return atomic_load_explicit(&record->state, relaxed) == BOX_COMM_LIVE &&
	       atomic_load_explicit(&record->generation, relaxed) == generation;
}

/* Whether others of the same peer end, round after round, and this one stands still: its end was
 * not told. */
static bool is_passed(struct net *net, struct net_op *op, uint32_t generation)
{
	uint64_t steps = (uint64_t)atomic_load_explicit(&op->first, relaxed) << 32 |
	                 atomic_load_explicit(&op->next, relaxed);
	uint32_t ended =
	    atomic_load_explicit(&net->ended[net_entry(net, op) - net->track->box->nets], relaxed);

	if (op->seen_generation != generation || op->seen_steps != steps)
		op->passed = 0;
	else
		op->passed += ended != op->seen_ended;
	op->seen_generation = generation;
	op->seen_steps = steps;
	op->seen_ended = ended;
	return op->passed >= PASSED_ROUNDS;
}

/* Looks after one slot; marks its entry as needed. Of an operation that is given up counts what was
 * until the last round. */
static void look_after(struct net *net, struct net_op *op, uint64_t now_tick, bool *needed)
{
	uint32_t generation = atomic_load_explicit(&op->generation, memory_order_acquire);
	const struct box_net *entry = net_entry(net, op);

	if ((generation & BOX_OP_STATE_MASK) == BOX_OP_FREE)
		return;
	needed[entry - net->track->box->nets] = true;
	if (!track_in_use(generation))
		return;
	if (!is_of_live(net->track->box, entry->comm, entry->comm_generation) ||
	    is_passed(net, op, generation)) {
		net_give_back(op, generation);
		return;
	}
	add_running(net, op, now_tick);
}

static void clear_moved(struct box_net *entry)
{
	atomic_store_explicit(&entry->refused, 0, relaxed);
	atomic_store_explicit(&entry->bytes, 0, relaxed);
	atomic_store_explicit(&entry->socket_requests, 0, relaxed);
	atomic_store_explicit(&entry->other_requests, 0, relaxed);
	atomic_store_explicit(&entry->other_bytes, 0, relaxed);
	for (unsigned i = 0; i < BOX_NET_QUEUES; i++) {
		struct box_net_queue *queue = &entry->queues[i];

		atomic_store_explicit(&queue->requests, 0, relaxed);
		atomic_store_explicit(&queue->bytes, 0, relaxed);
		atomic_store_explicit(&queue->pair, 0, relaxed);
	}
}

/* Entries of communicators whose record serves another by now. A thread that found one just before
 * may add a little to the next of that place. */
static void free_entries(struct box *box, const bool *needed)
{
	for (unsigned i = 0; i < BOX_NETS; i++) {
		struct box_net *entry = &box->nets[i];

		if (needed[i] ||
		    atomic_load_explicit(&entry->used, memory_order_acquire) != NET_ENTRY_VALID ||
		    atomic_load_explicit(&box->comms[entry->comm % BOX_LIVE_COMMS].generation,
		                         relaxed) == entry->comm_generation)
			continue;
		atomic_store_explicit(&entry->used, NET_ENTRY_TAKEN, relaxed);
		atomic_store_explicit(&entry->steps, 0, relaxed);
		for (unsigned state = 0; state < BOX_NET_STATES; state++)
			atomic_store_explicit(&entry->ns[state], 0, relaxed);
		clear_moved(entry);
		atomic_store_explicit(&entry->used, NET_ENTRY_FREE, memory_order_release);
	}
}

/* Whether an operation of a live communicator is so old that it may hang. */
static bool is_suspect(const struct net *net, uint64_t now_tick)
{
	const struct box *box = net->track->box;

	for (unsigned slot = 0; slot < BOX_OPS; slot++) {
		const struct box_op *op = &box->ops[slot];

		if (!track_in_use(atomic_load_explicit(&op->generation, memory_order_acquire)))
			continue;
		uint64_t since = atomic_load_explicit(&op->enqueue_tick, relaxed);

		if (since && since < now_tick && ns_of(net, now_tick - since) > SUSPECT_NS &&
		    is_of_live(box, atomic_load_explicit(&op->comm, relaxed),
		               atomic_load_explicit(&op->comm_generation, relaxed)))
			return true;
	}
	return false;
}

static bool is_wanted(struct net *net, uint64_t now_tick)
{
	bool was = atomic_load(&net->on);

	if (net->mode == CONFIG_NET_ON)
		return true;
	if (is_suspect(net, now_tick)) {
		net->suspected_tick = now_tick;
		return true;
	}
	return was && ns_of(net, now_tick - net->suspected_tick) < CALM_NS;
}

/* How many are followed until the next round, by how many were told since the last one. More at
 * once if there are too many, half as many in a round if there is room for it. */
static void choose_every(struct net *net, uint64_t span_ns, uint32_t fewer)
{
	uint32_t every = atomic_load(&net->every), followed = atomic_load(&net->followed);
	double told = (double)(followed - net->followed_before) * every;
	double a_second = span_ns ? told * 1e9 / (double)span_ns : 0;
	double limit = fewer ? (double)NET_OPS_A_SECOND / fewer : HUGE_VAL;

	net->followed_before = followed;
	if (every > 1 && 2 * a_second < limit * ROOM_SHARE * every)
		every /= 2;
	while (every < NET_EVERY_MOST && a_second / every > limit)
		every *= 2;
	atomic_store(&net->every, every);
	atomic_store(&net->track->box->header->net_every, every);
}

bool net_round(struct net *net, uint64_t now_tick, uint32_t fewer)
{
	struct box_header *header = net->track->box->header;
	bool needed[BOX_NETS] = { false };
	bool wanted, was;

	if (!net->ops)
		return false;
	for (unsigned slot = 0; slot < NET_OPS; slot++)
		look_after(net, &net->ops[slot], now_tick, needed);
	free_entries(net->track->box, needed);
	choose_every(net, ns_of(net, now_tick - net->round_tick), fewer);
	if (atomic_load(&header->net_on))
		atomic_fetch_add(&header->net_ns, ns_of(net, now_tick - net->round_tick));
	net->round_tick = now_tick;
	was = atomic_load(&net->on);
	wanted = is_wanted(net, now_tick);
	atomic_store(&net->on, wanted);
	atomic_store(&header->net_on, wanted && atomic_load(&header->silent) == BOX_SILENT_NOT);
	return wanted != was;
}
