/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/peers.h"

#include "hot/atomics.h"

#define relaxed memory_order_relaxed
#define PLACES 16u /* where an entry may be */

enum peer_used { PEER_FREE = 0, PEER_VALID = 1 };

/* Two threads that meet a new peer at once may make two entries of it: readers add them up. */
uint32_t peers_find_or_make(struct peers *peers, struct box *box, uint64_t identity)
{
	uint32_t first = peers_first_place(identity);

	for (unsigned i = 0; i < PLACES; i++)
		if (atomic_load_explicit(&peers->entries[(first + i) % BOX_PEERS].identity,
		                         relaxed) == identity)
			return (first + i) % BOX_PEERS;
	for (unsigned i = 0; i < PLACES; i++) {
		uint32_t place = (first + i) % BOX_PEERS;
		struct box_peer *entry = &box->peers[place];
		uint64_t nobody = 0;

		if (atomic_load_explicit(&peers->entries[place].identity, relaxed) ||
		    !atomic_compare_exchange_strong(&peers->entries[place].identity, &nobody,
		                                    identity))
			continue;
		entry->comm = peers_comm_of(identity);
		entry->func = (uint8_t)(identity >> 48);
		entry->peer = (int32_t)(uint32_t)identity;
		atomic_store_explicit(&entry->used, PEER_VALID, memory_order_release);
		return place;
	}
	return PEERS_NONE;
}

void peers_account(struct box *box, uint32_t index, uint64_t bytes, uint64_t time_ns,
                   int32_t rate_q20)
{
	struct box_peer *entry = &box->peers[index];
	uint64_t ops = atomic_load_explicit(&entry->ops, relaxed);

	atomic_store_explicit(&entry->begun, ops + 1, relaxed);
	order_stores();
	owned_add(&entry->bytes, bytes);
	owned_add(&entry->busy_ns, time_ns);
	atomic_store_explicit(&entry->log2_rate_q20,
	                      atomic_load_explicit(&entry->log2_rate_q20, relaxed) + rate_q20,
	                      relaxed);
	if (!ops || rate_q20 > atomic_load_explicit(&entry->best_rate_q20, relaxed))
		atomic_store_explicit(&entry->best_rate_q20, rate_q20, relaxed);
	atomic_store_explicit(&entry->ops, ops + 1, memory_order_release);
}

void peers_forget(struct peers *peers, struct box *box, unsigned comm)
{
	for (unsigned i = 0; i < BOX_PEERS; i++) {
		struct peers_entry *side = &peers->entries[i];
		struct box_peer *entry = &box->peers[i];
		uint64_t identity = atomic_load_explicit(&side->identity, relaxed);

		if (!identity || peers_comm_of(identity) != comm)
			continue;
		atomic_store_explicit(&entry->used, PEER_FREE, relaxed);
		atomic_store_explicit(&entry->begun, 0, relaxed);
		atomic_store_explicit(&entry->ops, 0, relaxed);
		atomic_store_explicit(&entry->bytes, 0, relaxed);
		atomic_store_explicit(&entry->busy_ns, 0, relaxed);
		atomic_store_explicit(&entry->log2_rate_q20, 0, relaxed);
		atomic_store_explicit(&entry->best_rate_q20, 0, relaxed);
		atomic_store_explicit(&side->calls, 0, relaxed);
		atomic_store_explicit(&side->identity, 0, memory_order_release);
	}
}
