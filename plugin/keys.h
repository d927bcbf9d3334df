/* SPDX-License-Identifier: Apache-2.0 */
/* keys.h - the kinds of operation: finding the one of an event, adding a finished operation to it. No lock. */
#ifndef NCCL_INSPECTOR_KEYS_H
#define NCCL_INSPECTOR_KEYS_H

#include "box.h"

#define KEYS_NONE UINT32_MAX
#define KEYS_FUNCS 16u /* of the direct table */
#define KEYS_CLASSES 64u

_Static_assert((unsigned)BOX_FUNCS <= KEYS_FUNCS, "every function has a place in the direct table");

struct keys {
	/* The latest key, + 1, of (communicator, function, size class); others of the same follow in `next`. */
	_Atomic uint16_t direct[BOX_LIVE_COMMS][KEYS_FUNCS][KEYS_CLASSES];
	_Atomic uint16_t next[BOX_KEYS];
	_Atomic uint32_t taken; /* of BOX_KEYS; a full table is not searched for every operation */
};

struct key_words {
	unsigned comm; /* < BOX_LIVE_COMMS */
	uint8_t func, size_class, algo, proto;
};

/* Index in box->keys, a new one if need be; KEYS_NONE when all are taken. */
uint32_t keys_find(struct keys *keys, struct box *box, const struct key_words *words);

/* Adds one operation of time_ns to a key. */
void keys_account(struct box *box, uint32_t index, const struct box_op *op, uint64_t time_ns);

/* Moves every key of record `from` to record `to`, adding up what both have, and forgets which keys `from` had;
 * only while no operation of it can start. */
void keys_fold(struct keys *keys, struct box *box, unsigned from, unsigned to);

void keys_raise_to(_Atomic uint64_t *word, uint64_t value);

#endif
