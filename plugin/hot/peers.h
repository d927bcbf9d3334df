/* SPDX-License-Identifier: Apache-2.0 */
/* hot/peers.h - Sends and Recvs by peer. No lock. */
#ifndef NCCL_INSPECTOR_HOT_PEERS_H
#define NCCL_INSPECTOR_HOT_PEERS_H

#include "box/box.h"

#define PEERS_NONE BOX_ENTRY_NONE

/* What the application's thread keeps of an entry of box->peers, which the thread of the kernels
 * writes to all the time. */
struct peers_entry {
	_Atomic uint64_t identity; /* what it is of (peers_identity); 0: it is free */
	_Atomic uint32_t calls;    /* Sends or Recvs that were called so far */
};

struct peers {
	struct peers_entry entries[BOX_PEERS];
};

/* A communicator, a function and a peer in one number; never 0. */
static inline uint64_t peers_identity(unsigned comm, unsigned func, int peer)
{
	return 1ull << 63 | (uint64_t)func << 48 | (uint64_t)comm << 32 | (uint32_t)peer;
}

/* The communicator in it. */
static inline unsigned peers_comm_of(uint64_t identity)
{
	return (uint16_t)(identity >> 32);
}

/* Where its entry is looked for first. */
static inline uint32_t peers_first_place(uint64_t identity)
{
	return (uint32_t)(identity * 0x9e3779b97f4a7c15u >> 32) % BOX_PEERS;
}

/* For peers_find: looks further than at the first place, and makes an entry if there is none. */
uint32_t peers_find_or_make(struct peers *peers, struct box *box, uint64_t identity);

/* Returns the index in box->peers, of a new entry if need be; PEERS_NONE: its places are taken. By
 * the threads that call NCCL. */
static inline uint32_t peers_find(struct peers *peers, struct box *box, unsigned comm,
                                  unsigned func, int peer)
{
	uint64_t identity = peers_identity(comm, func, peer);
	uint32_t first = peers_first_place(identity);

	return __builtin_expect(atomic_load_explicit(&peers->entries[first].identity,
	                                             memory_order_relaxed) == identity,
	                        1)
		   ? first
		   : peers_find_or_make(peers, box, identity);
}

/* The entry of a Send's or Recv's peer, and its number there: its peer counts the same. */
struct peers_call {
	uint32_t entry;  /* PEERS_NONE: none */
	uint32_t number; /* 0: not known */
};

/* A Send or Recv is called: counts it. By the threads that call NCCL. */
static inline __attribute__((always_inline)) struct peers_call
peers_call(struct peers *peers, struct box *box, unsigned comm, unsigned func, int peer)
{
	struct peers_call call = { .entry = peers_find(peers, box, comm, func, peer) };

	if (__builtin_expect(call.entry != PEERS_NONE, 1)) {
		_Atomic uint32_t *calls = &peers->entries[call.entry].calls;

		call.number = atomic_load_explicit(calls, memory_order_relaxed) + 1;
		atomic_store_explicit(calls, call.number, memory_order_relaxed);
	}
	return call;
}

/* Adds one finished operation to an entry; `rate_q20`: keys_rate_q20. The caller has the
 * communicator to itself. */
void peers_account(struct box *box, uint32_t entry, uint64_t bytes, uint64_t time_ns,
                   int32_t rate_q20);

/* Frees the entries of a communicator. The caller has it to itself. */
void peers_forget(struct peers *peers, struct box *box, unsigned comm);

#endif
