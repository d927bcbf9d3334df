/* SPDX-License-Identifier: Apache-2.0 */
/* hot/handle.h - what NCCL carries around for us: numbers in pointers, never addresses.
 *
 * - of an operation and its channels: kind, slot, channel and the slot's generation, so that a mask
 *   of the bits gives the slot's place in its table;
 * - of a group: kind, record of the communicator and the group's number;
 * - of a communicator (context): its record and the record's generation.
 *
 * A handle that NCCL gives us may be any number: of a profiler before us, or of a use that is over.
 * Any thread.
 */
#ifndef NCCL_INSPECTOR_HOT_HANDLE_H
#define NCCL_INSPECTOR_HOT_HANDLE_H

#include <stdbool.h>
#include <stdint.h>

#include "box/box.h"

/* 6 and 7 are those of net/proxy.h: with a slot of its own table, and a step's number for the
 * channel. */
enum handle_kind {
	HANDLE_OPERATION = 1,
	HANDLE_KERNEL,
	HANDLE_PHASE,
	HANDLE_GROUP,
	HANDLE_P2P_CALL,
	HANDLE_PLAN = 8,
	HANDLE_CAPTURED, /* a call into a graph; without a number */
	/* A group's: a member without a slot, and its channels (hot/slotless.h). */
	HANDLE_SLOTLESS,
	HANDLE_SLOTLESS_KERNEL,
	HANDLE_LAUNCH, /* of a communicator's kernel (hot/hosttime.h) */
};

#define HANDLE_KIND_MASK 0xfu
#define HANDLE_SLOT_SHIFT 7
#define HANDLE_CHANNEL_SHIFT 19 /* six bits */
#define HANDLE_GENERATION_SHIFT 32
/* In box_op.handle only: no handle is the same, so kernel events take the slow way (hot/skew.h,
 * slots_hand_on). */
#define HANDLE_LOOKED_AT (1ull << 25)
#define HANDLE_HANDED_ON (1ull << 26)
#define HANDLE_COMM_SHIFT 4 /* sixteen bits */
#define HANDLE_NUMBER_SHIFT 20

_Static_assert(BOX_OPS == 1u << (HANDLE_CHANNEL_SHIFT - HANDLE_SLOT_SHIFT),
               "a slot fits its place");
_Static_assert(sizeof(struct box_op) == 1u << HANDLE_SLOT_SHIFT,
               "its place is where it is in the table");
_Static_assert(BOX_LIVE_COMMS <= 1u << (HANDLE_NUMBER_SHIFT - HANDLE_COMM_SHIFT),
               "a record fits its place");

/* The number in a handle, and back. */
static inline uint64_t handle_bits(const void *handle)
{
	return (uintptr_t)handle;
}

static inline void *handle_of(uint64_t bits)
{
	return (void *)(uintptr_t)bits;
}

/* enum handle_kind, if it is a handle of ours. */
static inline unsigned handle_kind(uint64_t bits)
{
	return (unsigned)(bits & HANDLE_KIND_MASK);
}

/* Whether it is of that kind and of a slot in use: a number that is none of ours may have the
 * generation of a free slot. */
static inline bool handle_is_used(uint64_t bits, unsigned kind)
{
	uint64_t mask = HANDLE_KIND_MASK | (uint64_t)BOX_OP_STATE_MASK << HANDLE_GENERATION_SHIFT;

	return (bits & mask) == (kind | (uint64_t)BOX_OP_USED << HANDLE_GENERATION_SHIFT);
}

/* The same with another kind. */
static inline uint64_t handle_as(uint64_t bits, enum handle_kind kind)
{
	return (bits & ~(uint64_t)HANDLE_KIND_MASK) | kind;
}

/* The parts of a handle. Each is in its range, whatever the handle. */
static inline unsigned handle_channel(uint64_t bits)
{
	return (unsigned)(bits >> HANDLE_CHANNEL_SHIFT) & 63u;
}

static inline unsigned handle_slot(uint64_t bits)
{
	return (unsigned)(bits >> HANDLE_SLOT_SHIFT) & (BOX_OPS - 1);
}

/* The handle of the operation that has that use of a slot. */
static inline uint64_t handle_of_use(unsigned slot, uint32_t generation)
{
	return (uint64_t)generation << HANDLE_GENERATION_SHIFT |
	       (uint64_t)slot << HANDLE_SLOT_SHIFT | HANDLE_OPERATION;
}

/* Whether a handle is of a channel of the operation with that other handle, and of which
 * channel. */
static inline bool handle_is_channel_of(uint64_t bits, uint64_t operation, unsigned *channel)
{
	uint64_t beyond = bits - operation - (HANDLE_KERNEL - HANDLE_OPERATION);

	*channel = (unsigned)(beyond >> HANDLE_CHANNEL_SHIFT);
	return !(beyond & ~(63ull << HANDLE_CHANNEL_SHIFT));
}

static inline uint32_t handle_generation(uint64_t bits)
{
	return (uint32_t)(bits >> HANDLE_GENERATION_SHIFT);
}

static inline unsigned handle_comm(uint64_t bits)
{
	return (unsigned)(bits >> HANDLE_COMM_SHIFT) & 0xffffu;
}

static inline uint32_t handle_number(uint64_t bits)
{
	return (uint32_t)(bits >> HANDLE_NUMBER_SHIFT);
}

/* The context of a communicator. Never NULL. */
static inline void *handle_context(unsigned comm, uint32_t generation)
{
	return handle_of((uint64_t)generation << 16 | (comm + 1));
}

/* The context of a communicator without a record: its operations are counted as dropped. */
static inline void *handle_context_beyond(void)
{
	return handle_of(0xffff);
}

/* The record of a context and the generation that it must have; UINT32_MAX for one that has none or
 * is not ours. */
static inline unsigned handle_context_comm(const void *context, uint32_t *generation)
{
	uint64_t bits = handle_bits(context);
	unsigned comm = (unsigned)(bits & 0xffff) - 1;

	*generation = (uint32_t)(bits >> 16);
	return comm < BOX_LIVE_COMMS ? comm : UINT32_MAX;
}

#endif
