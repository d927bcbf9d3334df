/* SPDX-License-Identifier: Apache-2.0 */
/* expo_window.c - what an exposition shows: sums at both ends of the window, and the busiest series. */
#include <string.h>

#include "clock.h"
#include "expo_prom.h"

#define relaxed memory_order_relaxed
#define PROCESS_SERIES (6u + BOX_DROPS)
#define COMM_SERIES 6u
#define KEY_SERIES 5u

/* Retried while the hot path is adding to the key; after three times what is there must do. */
static struct expo_sum read_key(const struct box *box, const struct box_key *key)
{
	struct expo_sum sum = { 0 };

	for (int tries = 0; tries < 3; tries++) {
		sum.ops = atomic_load_explicit(&key->ops, memory_order_acquire);
		/* Acquire keeps the load of `begun` behind these. */
		sum.bytes = atomic_load_explicit(&key->bytes, memory_order_acquire);
		sum.busy_ns = atomic_load_explicit(&key->busy_ns, memory_order_acquire);
		sum.log2_rate_q20 = atomic_load_explicit(&key->log2_rate_q20, memory_order_acquire);
		if (atomic_load_explicit(&key->begun, relaxed) == sum.ops)
			break;
	}
	sum.comm = key->comm;
	sum.comm_generation = atomic_load_explicit(&box->comms[key->comm].generation, relaxed);
	sum.words = (uint32_t)(key->func | key->size_class << 8 | key->algo << 16) |
		    (uint32_t)key->proto << 24;
	return sum;
}

static bool is_same_key(const struct expo_sum *a, const struct expo_sum *b)
{
	return a->comm == b->comm && a->comm_generation == b->comm_generation && a->words == b->words;
}

static bool is_live(const struct box_comm *comm, uint32_t generation)
{
	return atomic_load_explicit(&comm->state, relaxed) == BOX_COMM_LIVE &&
	       atomic_load_explicit(&comm->generation, relaxed) == generation;
}

static void find_in_flight(struct expo *expo, uint64_t now_tick, uint64_t ns_per_tick_q32)
{
	memset(expo->inflight_ns, 0, sizeof(expo->inflight_ns));
	memset(expo->running, 0, sizeof(expo->running));
	for (unsigned i = 0; i < BOX_OPS; i++) {
		const struct box_op *op = &expo->box->ops[i];
		uint32_t generation = atomic_load_explicit(&op->generation, memory_order_acquire);
		uint32_t comm = atomic_load_explicit(&op->comm, memory_order_acquire);
		uint32_t comm_generation = atomic_load_explicit(&op->comm_generation, memory_order_acquire);
		uint64_t since = atomic_load_explicit(&op->enqueue_tick, memory_order_acquire);
		uint64_t channels = atomic_load_explicit(&op->started_channels, memory_order_acquire);

		/* Unchanged around the reads: they are of one use of the slot. */
		if ((generation & BOX_OP_STATE_MASK) != BOX_OP_USED ||
		    atomic_load_explicit(&op->generation, relaxed) != generation ||
		    comm >= BOX_LIVE_COMMS || since >= now_tick ||
		    !is_live(&expo->box->comms[comm], comm_generation))
			continue;
		uint64_t age = clock_ticks_to_ns(now_tick - since, ns_per_tick_q32);

		expo->running[comm] += channels != 0;
		if (age > expo->inflight_ns[comm])
			expo->inflight_ns[comm] = age;
	}
}

void expo_window(struct expo *expo, uint64_t now_tick, uint64_t ns_per_tick_q32)
{
	memcpy(expo->before, expo->now, sizeof(expo->before));
	for (unsigned i = 0; i < BOX_KEYS; i++) {
		bool used = atomic_load_explicit(&expo->box->keys[i].used, memory_order_acquire) == 1;

		expo->now[i] = used ? read_key(expo->box, &expo->box->keys[i]) : (struct expo_sum){ 0 };
		if (!is_same_key(&expo->before[i], &expo->now[i]))
			expo->before[i] = (struct expo_sum){ 0 };
	}
	find_in_flight(expo, now_tick, ns_per_tick_q32);
}

static bool comm_counts(const struct box_comm *comm, unsigned gpu)
{
	uint32_t state = atomic_load_explicit(&comm->state, memory_order_acquire);

	return comm->gpu == gpu && (state == BOX_COMM_LIVE || state == BOX_COMM_DESTROYED);
}

/* Two records of equal id and rank would have equal labels: the newer one has the series. */
static bool is_hidden_by(const struct box_comm *comm, const struct box_comm *other)
{
	return other != comm && other->id == comm->id && other->rank == comm->rank &&
	       (other->created_real_ns > comm->created_real_ns ||
		(other->created_real_ns == comm->created_real_ns && other > comm));
}

static bool comm_has_series(const struct box *box, unsigned index, unsigned gpu)
{
	if (!comm_counts(&box->comms[index], gpu))
		return false;
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		if (comm_counts(&box->comms[i], gpu) && is_hidden_by(&box->comms[index], &box->comms[i]))
			return false;
	return true;
}

/* Marks the `count` largest of the candidates; returns how many candidates were left out. */
static unsigned choose(const uint64_t *weight, const bool *candidate, unsigned room, unsigned count,
		       bool *chosen)
{
	unsigned left_out = 0;

	memset(chosen, 0, room * sizeof(*chosen));
	for (unsigned n = 0; n < count; n++) {
		unsigned best = room;

		for (unsigned i = 0; i < room; i++)
			if (candidate[i] && !chosen[i] && (best == room || weight[i] > weight[best]))
				best = i;
		if (best == room)
			break;
		chosen[best] = true;
	}
	for (unsigned i = 0; i < room; i++)
		left_out += candidate[i] && !chosen[i];
	return left_out;
}

void expo_choose(struct expo *expo, unsigned gpu)
{
	uint64_t comm_weight[BOX_COMMS], key_weight[BOX_KEYS];
	bool comm_candidate[BOX_COMMS], key_candidate[BOX_KEYS];
	unsigned comms = 0, hidden = 0, left_out;

	for (unsigned i = 0; i < BOX_COMMS; i++) {
		comm_candidate[i] = comm_has_series(expo->box, i, gpu);
		hidden += comm_counts(&expo->box->comms[i], gpu) && !comm_candidate[i];
		comm_weight[i] = atomic_load_explicit(&expo->box->comms[i].enqueued, relaxed);
	}
	left_out = COMM_SERIES * hidden +
		   COMM_SERIES *
			   choose(comm_weight, comm_candidate, BOX_COMMS, EXPO_MAX_COMMS, expo->shown_comm);
	for (unsigned i = 0; i < BOX_COMMS; i++)
		comms += expo->shown_comm[i];
	for (unsigned i = 0; i < BOX_KEYS; i++) {
		const struct box_key *key = &expo->box->keys[i];

		key_candidate[i] = expo->now[i].ops && comm_candidate[key->comm] &&
				   (2ull << key->size_class) > expo->config->min_bytes;
		key_weight[i] = expo->now[i].busy_ns;
	}
	left_out += KEY_SERIES * choose(key_weight, key_candidate, BOX_KEYS,
					(EXPO_MAX_SERIES - PROCESS_SERIES - COMM_SERIES * comms) / KEY_SERIES,
					expo->shown_key);
	atomic_fetch_add_explicit(&expo->box->header->series_dropped, left_out, relaxed);
}
