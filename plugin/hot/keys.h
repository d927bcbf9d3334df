/* SPDX-License-Identifier: Apache-2.0 */
/* hot/keys.h - the kinds of operation: finding the key of an event, adding a finished operation to
 * it. No lock.
 *
 * Many communicators with many sizes may have more kinds than there are keys. The last keys are
 * kept for that: one for each function and size class, of all communicators together
 * (BOX_COMM_MORE), so that bytes and times are not lost.
 */
#ifndef NCCL_INSPECTOR_HOT_KEYS_H
#define NCCL_INSPECTOR_HOT_KEYS_H

#include <stddef.h>

#include "base/log2.h"
#include "box/box.h"
#include "hot/atomics.h"

#define KEYS_NONE UINT32_MAX
#define KEYS_FUNCS 16u /* of the direct table */
#define KEYS_CLASSES 64u
#define KEYS_OWN (BOX_KEYS - 48u) /* those behind them are BOX_COMM_MORE's */

_Static_assert((unsigned)BOX_FUNCS <= KEYS_FUNCS, "every function has a place in the direct table");

struct keys {
	/* The latest key, + 1, of (communicator, function, size class); others of the same follow
	 * in `next`. */
	/* The last row: BOX_COMM_MORE's. */
	_Atomic uint16_t direct[BOX_LIVE_COMMS + 1][KEYS_FUNCS][KEYS_CLASSES];
	_Atomic uint16_t next[BOX_KEYS];
	_Atomic uint32_t taken, taken_shared; /* a full table is not searched for every operation */
	/* Calls for which NCCL may yet give an event: the sweep makes untimed operations of them if
	 * it does not. */
	_Atomic uint32_t called_ops[BOX_KEYS];
	_Atomic uint64_t called_bytes[BOX_KEYS];
};

struct key_fields {
	unsigned comm; /* < BOX_LIVE_COMMS */
	uint8_t func, size_class, algo, proto;
};

/* A finished operation. */
struct finished {
	uint64_t bytes; /* as the caller counts them */
	uint64_t time_ns, index;
	int32_t rate_q20; /* keys_rate_q20 of what the bandwidth is of: of `bytes` but for groups */
	uint64_t wait_ns; /* of the time, with `phased` */
	bool phased;
};

/* log2(bytes / ns), in 2^-20. */
static inline int32_t keys_rate_q20(uint64_t bytes, uint64_t time_ns)
{
	return log2_q20(bytes) - log2_q20(time_ns);
}

enum key_used { KEY_FREE = 0, KEY_VALID = 1, KEY_TAKEN = 2 };

/* Whether a key is of that kind. Any thread. */
static inline bool key_matches(const struct box_key *key, const struct key_fields *fields)
{
	return atomic_load_explicit(&key->used, memory_order_acquire) == KEY_VALID &&
	       key->comm == fields->comm && key->func == fields->func &&
	       key->size_class == fields->size_class && key->algo == fields->algo &&
	       key->proto == fields->proto;
}

/* The key at that index if it is valid and of that communicator, else NULL: the members of another
 * one may be written just now. Any thread. */
static inline struct box_key *keys_of_comm(struct box *box, uint32_t index, unsigned comm)
{
	struct box_key *key = index < BOX_KEYS ? &box->keys[index] : NULL;

	return key && atomic_load_explicit(&key->used, memory_order_acquire) == KEY_VALID &&
	               key->comm == comm
		   ? key
		   : NULL;
}

/* For keys_find: looks further than at the latest key, and makes one if there is none. */
uint32_t keys_find_or_make(struct keys *keys, struct box *box, const struct key_fields *fields);

/* Whether operations of several communicators, and so of several threads, are added to it. */
static inline bool keys_is_shared(uint32_t index)
{
	return index >= KEYS_OWN && index != KEYS_NONE;
}

/* Returns the index in box->keys of a kind: of a new key if need be, or of a shared one; KEYS_NONE:
 * all are taken. Any thread. */
static inline uint32_t keys_find(struct keys *keys, struct box *box,
                                 const struct key_fields *fields)
{
	uint16_t first = atomic_load_explicit(&keys->direct[fields->comm][fields->func % KEYS_FUNCS]
	                                                   [fields->size_class % KEYS_CLASSES],
	                                      memory_order_acquire);

	return first && key_matches(&box->keys[first - 1], fields)
		   ? first - 1u
		   : keys_find_or_make(keys, box, fields);
}

/* Adds operations without a time. Any thread. */
void keys_add_untimed(struct box *box, uint32_t index, uint64_t ops, uint64_t bytes);

/* Moves every key of record `from` to record `to`, adding up what both have, and forgets which keys
 * `from` had. No operation of `from` may start meanwhile. Under the inspector's lock, and the
 * caller has the communicator to itself. */
void keys_fold(struct keys *keys, struct box *box, unsigned from, unsigned to);

/* For keys_account: halves a histogram of which a bucket is full. */
void keys_halve(struct hist *hist);

/* For keys_account: adds an operation to a shared key. */
void keys_account_shared(struct box *box, uint32_t index, const struct finished *op);

/* Adds one operation to a key (not KEYS_NONE). The caller has the communicator to itself. */
static inline __attribute__((always_inline)) void keys_account(struct box *box, uint32_t index,
                                                               const struct finished *op)
{
	struct box_key *key = &box->keys[index];
	uint64_t ops = atomic_load_explicit(&key->ops, memory_order_relaxed);

	if (__builtin_expect(index >= KEYS_OWN, 0)) {
		const struct finished copy = *op; /* so that the other stays in registers */

		keys_account_shared(box, index, &copy);
		return;
	}
	atomic_store_explicit(&key->begun, ops + 1, memory_order_relaxed);
	order_stores();
	_Atomic uint32_t *bucket = &box->hists[index].count[hist_bucket(op->time_ns)];

	if (__builtin_expect(atomic_load_explicit(bucket, memory_order_relaxed) == UINT32_MAX, 0))
		keys_halve(&box->hists[index]);
	atomic_store_explicit(bucket, atomic_load_explicit(bucket, memory_order_relaxed) + 1,
	                      memory_order_relaxed);
	owned_add(&key->bytes, op->bytes);
	owned_add(&key->busy_ns, op->time_ns);
	atomic_store_explicit(&key->log2_rate_q20,
	                      atomic_load_explicit(&key->log2_rate_q20, memory_order_relaxed) +
	                          op->rate_q20,
	                      memory_order_relaxed);
	owned_lower(&key->min_ns, op->time_ns);
	owned_raise(&key->max_ns, op->time_ns);
	owned_raise(&key->last_index, op->index);
	if (!ops)
		atomic_store_explicit(&key->first_index, op->index, memory_order_relaxed);
	if (op->phased) {
		owned_add(&key->phased_ops, 1);
		owned_add(&key->wait_ns, op->wait_ns);
	}
	atomic_store_explicit(&key->ops, ops + 1, memory_order_release);
}

#endif
