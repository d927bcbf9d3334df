/* SPDX-License-Identifier: Apache-2.0 */
/* hot/memo.h - which key an operation belongs to, by the addresses of its strings if it is like an
 * earlier one.
 *
 * By the threads that call NCCL.
 */
#ifndef NCCL_INSPECTOR_HOT_MEMO_H
#define NCCL_INSPECTOR_HOT_MEMO_H

#include "base/log2.h"
#include "box/bandwidth.h"
#include "hot/keys.h"
#include "hot/state.h"
#include "nccl/event.h"

/* What the hot path needs of an operation's kind. */
struct kind {
	uint32_t key, datatype_bytes;
	struct key_fields fields;
};

/* box_op.kind, with the channels in `last`; track_memo.kind, with the size class. */
static inline uint32_t memo_pack(const struct key_fields *fields, uint8_t last)
{
	return (uint32_t)(fields->func | fields->algo << 8 | fields->proto << 16) | (uint32_t)last
	                                                                                << 24;
}

/* Where a communicator remembers operations of that function and about that many elements. */
static inline struct track_memo *memo_place(struct track_comm *app, const char *func,
                                            uint64_t count)
{
	uint64_t spread = ((uintptr_t)func >> 4) + log2_floor(count | 1);

	return &app->memos[spread % TRACK_MEMOS];
}

/* Finds the kind of an operation that is like the last one in its place. False: it is not like that
 * one. */
static inline __attribute__((always_inline)) bool
memo_recall(struct track_comm *app, unsigned comm, const struct event *event, struct kind *kind)
{
	const struct track_memo *memo = memo_place(app, event->func, event->count);
	uint32_t turn = atomic_load_explicit(&memo->turn, memory_order_acquire);
	uint32_t packed = atomic_load_explicit(&memo->kind, memory_order_acquire);

	kind->key = atomic_load_explicit(&memo->key, memory_order_acquire);
	kind->datatype_bytes = atomic_load_explicit(&memo->datatype_bytes, memory_order_acquire);
	kind->fields.comm = comm;
	kind->fields.func = (uint8_t)packed;
	kind->fields.algo = (uint8_t)(packed >> 8);
	kind->fields.proto = (uint8_t)(packed >> 16);
	kind->fields.size_class = (uint8_t)(packed >> 24);
	return event->func &&
	       atomic_load_explicit(&memo->func, memory_order_acquire) == event->func &&
	       atomic_load_explicit(&memo->datatype, memory_order_acquire) == event->datatype &&
	       atomic_load_explicit(&memo->algo, memory_order_acquire) == event->algo &&
	       atomic_load_explicit(&memo->proto, memory_order_acquire) == event->proto &&
	       !event->symmetric &&
	       bandwidth_size_class(event->count * kind->datatype_bytes) == packed >> 24 &&
	       atomic_load_explicit(&memo->turn, memory_order_relaxed) == turn && !(turn & 1);
}

/* Returns the kind of any operation: compares its strings, makes a key if need be, and remembers.
 * By value, both ways, so that nothing of the quick way needs an address. */
struct kind memo_find(struct track *track, unsigned comm, struct event event);

/* What names the key of an operation of that many bytes. */
struct key_fields memo_fields(unsigned comm, const struct event *event, uint64_t bytes);

/* NCCL gives events of operations of that function: its calls need not be looked at. */
void memo_mark_seen(struct track_comm *app, unsigned func);

#endif
