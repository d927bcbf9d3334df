/* SPDX-License-Identifier: Apache-2.0 */
#include "prom/window.h"

#include <string.h>

#include "base/clock.h"

#define relaxed memory_order_relaxed

/* Retried while the hot path is adding to the key; after three times what is there must do. */
static struct prom_sum read_key(const struct box *box, const struct box_key *key,
                                struct prom_more *more)
{
	struct prom_sum sum = { 0 };

	for (int tries = 0; tries < 3; tries++) {
		sum.ops = atomic_load_explicit(&key->ops, memory_order_acquire);
		/* Acquire keeps the load of `begun` behind these. */
		sum.bytes = atomic_load_explicit(&key->bytes, memory_order_acquire);
		sum.busy_ns = atomic_load_explicit(&key->busy_ns, memory_order_acquire);
		sum.log2_rate_q20 = atomic_load_explicit(&key->log2_rate_q20, memory_order_acquire);
		more->phased_ops = atomic_load_explicit(&key->phased_ops, memory_order_acquire);
		more->wait_ns = atomic_load_explicit(&key->wait_ns, memory_order_acquire);
		if (atomic_load_explicit(&key->begun, relaxed) == sum.ops)
			break;
	}
	more->untimed_ops = atomic_load_explicit(&key->untimed_ops, relaxed);
	more->untimed_bytes = atomic_load_explicit(&key->untimed_bytes, relaxed);
	sum.comm = key->comm;
	sum.comm_generation = atomic_load_explicit(&box->comms[key->comm].generation, relaxed);
	sum.packed = (uint32_t)(key->func | key->size_class << 8 | key->algo << 16) |
	             (uint32_t)key->proto << 24;
	return sum;
}

static bool is_same_key(const struct prom_sum *a, const struct prom_sum *b)
{
	return a->comm == b->comm && a->comm_generation == b->comm_generation &&
	       a->packed == b->packed;
}

static bool is_live(const struct box_comm *comm, uint32_t generation)
{
	return atomic_load_explicit(&comm->state, relaxed) == BOX_COMM_LIVE &&
	       atomic_load_explicit(&comm->generation, relaxed) == generation;
}

/* What is over is read before the slots are: then none is in both, but one that ends in between is
 * in neither. */
static void read_over(const struct box *box, uint64_t started[BOX_COMMS])
{
	for (unsigned i = 0; i < BOX_COMMS; i++)
		started[i] = atomic_load_explicit(&box->comms[i].started, memory_order_acquire);
}

static void keep_highest(struct prom *prom, const uint64_t started[BOX_COMMS])
{
	for (unsigned i = 0; i < BOX_COMMS; i++) {
		uint32_t generation =
		    atomic_load_explicit(&prom->box->comms[i].generation, relaxed);

		if (prom->started_generation[i] != generation || prom->started[i] < started[i])
			prom->started[i] = started[i];
		prom->started_generation[i] = generation;
	}
}

static void find_in_flight(struct prom *prom, uint64_t now_tick, uint64_t ns_per_tick_q32)
{
	uint64_t started[BOX_COMMS];

	read_over(prom->box, started);
	memset(prom->inflight_ns, 0, sizeof(prom->inflight_ns));
	memset(prom->p2p_inflight_ns, 0, sizeof(prom->p2p_inflight_ns));
	for (unsigned i = 0; i < BOX_OPS; i++) {
		const struct box_op *op = &prom->box->ops[i];
		uint32_t generation = atomic_load_explicit(&op->generation, memory_order_acquire);

		if ((generation & BOX_OP_STATE_MASK) != BOX_OP_USED)
			continue;
		uint32_t comm = atomic_load_explicit(&op->comm, memory_order_acquire);
		uint32_t comm_generation =
		    atomic_load_explicit(&op->comm_generation, memory_order_acquire);
		uint64_t since = atomic_load_explicit(&op->enqueue_tick, memory_order_acquire);
		int32_t peer = atomic_load_explicit(&op->peer, memory_order_acquire);
		uint64_t channels =
		    atomic_load_explicit(&op->started_channels, memory_order_acquire);

		/* Unchanged around the reads: they are of one use of the slot. */
		if (atomic_load_explicit(&op->generation, relaxed) != generation ||
		    comm >= BOX_LIVE_COMMS || since >= now_tick ||
		    !is_live(&prom->box->comms[comm], comm_generation))
			continue;
		/* 0: so young that the beat thread has not seen it yet. */
		uint64_t age = since ? clock_ticks_to_ns(now_tick - since, ns_per_tick_q32) : 0;

		started[comm] += channels != 0;
		uint64_t *oldest = peer < 0 ? prom->inflight_ns : prom->p2p_inflight_ns;

		if (age > oldest[comm])
			oldest[comm] = age;
	}
	keep_highest(prom, started);
}

void prom_window(struct prom *prom, uint64_t now_tick, uint64_t ns_per_tick_q32)
{
	memcpy(prom->before, prom->now, sizeof(prom->before));
	memset(prom->more, 0, sizeof(prom->more));
	for (unsigned i = 0; i < BOX_KEYS; i++) {
		bool used =
		    atomic_load_explicit(&prom->box->keys[i].used, memory_order_acquire) == 1;

		prom->now[i] = used ? read_key(prom->box, &prom->box->keys[i], &prom->more[i])
		                    : (struct prom_sum){ 0 };
		if (!is_same_key(&prom->before[i], &prom->now[i]))
			prom->before[i] = (struct prom_sum){ 0 };
	}
	find_in_flight(prom, now_tick, ns_per_tick_q32);
}
