/* SPDX-License-Identifier: Apache-2.0 */
#include "peers.h"

#include "keys.h"
#include "log2.h"

#define relaxed memory_order_relaxed
#define PLACES 16u /* where an entry may be */

enum peer_used { PEER_FREE = 0, PEER_VALID = 1, PEER_TAKEN = 2 };

static bool matches(const struct box_peer *entry, unsigned comm, unsigned func, int peer)
{
	return atomic_load_explicit(&entry->used, memory_order_acquire) == PEER_VALID && entry->peer == peer &&
	       entry->comm == comm && entry->func == func;
}

/* Two threads that meet a new peer at once may make two entries of it: readers add them up. */
uint32_t peers_find(struct box *box, unsigned comm, unsigned func, int peer)
{
	uint32_t first = (((uint32_t)peer * 64u + comm) * 16u + func) * 2654435761u >> 16;

	for (unsigned i = 0; i < PLACES; i++)
		if (matches(&box->peers[(first + i) % BOX_PEERS], comm, func, peer))
			return (first + i) % BOX_PEERS;
	for (unsigned i = 0; i < PLACES; i++) {
		struct box_peer *entry = &box->peers[(first + i) % BOX_PEERS];
		uint32_t unused = PEER_FREE;

		if (atomic_load_explicit(&entry->used, relaxed) != PEER_FREE ||
		    !atomic_compare_exchange_strong(&entry->used, &unused, PEER_TAKEN))
			continue;
		entry->comm = comm;
		entry->func = func;
		entry->peer = peer;
		atomic_store_explicit(&entry->used, PEER_VALID, memory_order_release);
		return (first + i) % BOX_PEERS;
	}
	return PEERS_NONE;
}

void peers_account(struct box *box, uint32_t index, const struct finished *op)
{
	struct box_peer *entry = &box->peers[index];
	uint64_t ops = atomic_load_explicit(&entry->ops, relaxed);
	int32_t rate_q20 = log2_q20(op->rate_bytes) - log2_q20(op->time_ns);

	atomic_store_explicit(&entry->begun, ops + 1, relaxed);
	word_order();
	word_add(&entry->bytes, op->bytes);
	word_add(&entry->busy_ns, op->time_ns);
	atomic_store_explicit(&entry->log2_rate_q20,
			      atomic_load_explicit(&entry->log2_rate_q20, relaxed) + rate_q20, relaxed);
	if (!ops || rate_q20 > atomic_load_explicit(&entry->best_rate_q20, relaxed))
		atomic_store_explicit(&entry->best_rate_q20, rate_q20, relaxed);
	atomic_store_explicit(&entry->ops, ops + 1, memory_order_release);
}

void peers_forget(struct box *box, unsigned comm, _Atomic uint32_t calls[BOX_PEERS])
{
	for (unsigned i = 0; i < BOX_PEERS; i++) {
		struct box_peer *entry = &box->peers[i];

		if (atomic_load_explicit(&entry->used, memory_order_acquire) != PEER_VALID || entry->comm != comm)
			continue;
		atomic_store_explicit(&entry->used, PEER_TAKEN, relaxed);
		atomic_store_explicit(&entry->begun, 0, relaxed);
		atomic_store_explicit(&entry->ops, 0, relaxed);
		atomic_store_explicit(&entry->bytes, 0, relaxed);
		atomic_store_explicit(&entry->busy_ns, 0, relaxed);
		atomic_store_explicit(&entry->log2_rate_q20, 0, relaxed);
		atomic_store_explicit(&entry->best_rate_q20, 0, relaxed);
		atomic_store_explicit(&calls[i], 0, relaxed);
		atomic_store_explicit(&entry->used, PEER_FREE, memory_order_release);
	}
}
