/* SPDX-License-Identifier: Apache-2.0 */
/* hot/groups.h - the Sends and Recvs that one call made, as one operation with the caller's view.
 *
 * NCCL decomposes AlltoAll, Gather and Scatter (and PyTorch its all-to-all) into Sends and Recvs
 * whose kernels run together; only their common parent ties them together: the call (GroupApi; on
 * NCCL <= 2.27 Group), or where that has returned, or belongs to another communicator, the kernel's
 * plan (Group of v5 and later). A group is over when its call has returned, or its plan is told,
 * and all its members are over. Its time is from the first start to the last stop.
 *
 * A group may have more members than there are slots (an all-to-all of more than a thousand ranks).
 * Those without one have no time of their own; the group adds up their channels, so that its time
 * is that of all.
 */
#ifndef NCCL_INSPECTOR_HOT_GROUPS_H
#define NCCL_INSPECTOR_HOT_GROUPS_H

#include "box/box.h"

#define GROUPS 256u /* with unfinished members at one time */
/* Where struct group.state has how many members joined. */
#define GROUPS_JOINED_SHIFT 30u
#define GROUPS_COUNT_MASK ((1ull << GROUPS_JOINED_SHIFT) - 1)

struct group {
	_Alignas(64) _Atomic uint64_t token; /* 0: free */
	/* Joined, over, spoiled, closed: exactly one caller finds the group over. */
	_Atomic uint64_t state;
	/* The application's side. */
	_Atomic uint64_t sent, received, to_self; /* bytes */
	_Atomic uint32_t sends, receives;         /* without those to itself */
	/* The kernel-event side: GPU clock. */
	_Alignas(64) _Atomic uint64_t start_ns, stop_ns;
	_Atomic uint64_t last_index;
	_Atomic uint64_t enqueue_tick; /* of its first member whose call is timed; 0: none yet */
	/* The members that have no slot have figures of their own, because other threads write
	 * them: these the one that tells the members, */
	_Alignas(64) _Atomic uint32_t slotless; /* 0 once they are over */
	_Atomic uint32_t comm_generation;
	_Atomic uint64_t announced_channels, slotless_last_index, slotless_enqueue_tick;
	_Atomic uint64_t known_tick; /* of the sweep's round before the first of them came */
	/* and these the one that reports their channels. */
	_Atomic uint64_t started_channels, stopped_channels;
	_Alignas(64) _Atomic uint64_t slotless_start_ns, slotless_stop_ns;
};

struct groups {
	struct group group[GROUPS];
	/* Groups of each communicator and function so far. */
	_Atomic uint32_t over[BOX_LIVE_COMMS][BOX_FUNCS];
	_Atomic bool has_slotless; /* some group once had members without a slot */
};

/* What a group was, once it is over. */
struct group_facts {
	/* AlltoAll, Gather, Scatter: this rank exchanges with all others; else SendRecv. */
	uint8_t func;
	/* AlltoAll, Gather, Scatter: all, this rank's own part too; SendRecv: the larger
	 * direction. */
	uint64_t bytes;
	uint64_t rate_bytes; /* that crossed to or from others in one direction */
	uint64_t start_ns, stop_ns, last_index, enqueue_tick;
	uint32_t number; /* among the groups of this function in its communicator, from 1 */
};

/* A communicator begins in that record: its groups are counted from 1. Under the inspector's
 * lock. */
void groups_new_comm(struct groups *groups, unsigned comm);

/* The record of struct box_comm that a group's token names. */
static inline unsigned groups_comm(uint64_t token)
{
	return (unsigned)(token & 0xffff) % BOX_LIVE_COMMS;
}

/* Returns the number + 1 of the open group of `token` (not 0), of a new entry for its first member;
 * 0: there is no place. By the thread that tells its members. */
uint32_t groups_join(struct groups *groups, uint64_t token, bool is_first);

/* Adds a member to a group, by its number + 1. One to itself has no kernel and is over at once. By
 * the same thread. */
void groups_add(struct groups *groups, uint32_t number, bool is_send, uint64_t bytes, bool to_self);

/* A member is over, by its group's number + 1: measured, or without a time (stop_ns 0), which
 * spoils the group. Times are the GPU's. Returns true, with the facts, if that made the group over
 * and it is worth an operation of its own. The caller has the communicator to itself. */
bool groups_member_over(struct groups *groups, uint32_t number, uint64_t start_ns, uint64_t stop_ns,
                        uint64_t index, uint64_t enqueue_tick, int nranks,
                        struct group_facts *facts);

/* A member, already added, that has got no slot. */
struct slotless {
	uint64_t index, enqueue_tick, known_tick;
	uint32_t channels; /* that NCCL announced */
	uint32_t comm_generation;
};

/* Adds it. By the thread that tells the members. */
void groups_add_slotless(struct groups *groups, uint32_t number, const struct slotless *member);

/* A channel of a member without a slot begins on the GPU. False: its group is over. By the thread
 * that reports the group's channels. */
bool groups_slotless_start(struct groups *groups, uint64_t token, uint64_t gpu_ns);

/* Such a channel ended. Returns true if it was the last one of a group that has been closed: then
 * groups_slotless_over is due. False also for a channel that did not begin. By the same thread. */
bool groups_slotless_stop(struct groups *groups, uint64_t token, uint64_t gpu_ns);

/* Whether all channels of its members without a slot had ended when the group was closed: then
 * groups_slotless_over is due. Any thread. */
bool groups_slotless_ended(struct groups *groups, uint64_t token);

/* When the members without a slot began and ended so far, by the GPU's clock, and a tick before
 * they came. False: the group has no such members. Any thread. */
bool groups_slotless_times(struct groups *groups, uint64_t token, uint64_t *start_ns,
                           uint64_t *stop_ns, uint64_t *known_tick);

/* All members without a slot are over; not `timed`: some have no time, which spoils the group.
 * Otherwise as groups_member_over. */
bool groups_slotless_over(struct groups *groups, uint64_t token, bool timed, int nranks,
                          struct group_facts *facts);

/* For the sweep, once a second: closes each group that was left open for a whole round though the
 * open group of its communicator is another one, because its call was aborted. `open_number`
 * returns that open group's number (the token's upper bits). `strays` is what the round before
 * found. */
void groups_close_strays(struct groups *groups, uint64_t strays[GROUPS],
                         uint32_t (*open_number)(const void *argument, unsigned comm),
                         const void *argument);

/* Whether a group takes no more members. */
bool groups_is_closed(const struct group *group);

/* How many members have joined a group (by its number + 1) that has unfinished ones. */
static inline uint64_t groups_joined(const struct groups *groups, uint32_t number)
{
	return atomic_load_explicit(&groups->group[number - 1].state, memory_order_relaxed) >>
	           GROUPS_JOINED_SHIFT &
	       GROUPS_COUNT_MASK;
}

/* The call has returned. Returns as groups_member_over; false if there is no entry of that token.
 * Any thread. */
bool groups_close(struct groups *groups, uint64_t token, int nranks, struct group_facts *facts);

#endif
