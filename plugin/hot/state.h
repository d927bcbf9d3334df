/* SPDX-License-Identifier: Apache-2.0 */
/* hot/state.h - the hot path: from event to counters, in preallocated slots.
 *
 * No lock, allocation, system call, log line or unbounded loop. An operation lives
 * in a slot of the box from its start until its last kernel event, which comes from
 * another thread, perhaps before the start has returned. That thread adds it to its
 * key and frees the slot. What NCCL calls the stop of an operation (it is enqueued)
 * tells nothing and is not followed.
 *
 * Figures of a communicator are added up by one thread at a time: who finds
 * box_comm.busy odd leaves the operation to upkeep/sweep.c, and never waits.
 *
 * A handle is a number in a pointer: kind, channel, slot and the slot's generation.
 * An event with a handle of an earlier generation is counted and does nothing.
 */
#ifndef NCCL_INSPECTOR_HOT_STATE_H
#define NCCL_INSPECTOR_HOT_STATE_H

#include <stddef.h>

#include "nccl/abi.h"
#include "box/box.h"
#include "hot/channels.h"
#include "base/clock.h"
#include "hot/clockmix.h"
#include "hot/ends.h"
#include "nccl/event.h"
#include "hot/groups.h"
#include "hot/handle.h"
#include "hot/jsonring.h"
#include "hot/keys.h"
#include "hot/labels.h"
#include "hot/peers.h"
#include "hot/skew.h"
#include "hot/owner.h"
#include "nccl/strings.h"

/* The key of an operation that was there before, by the addresses of its words. A line of the cache each, written
 * seldom: whoever reads it looks at `turn` before and after. */
struct track_memo {
	_Alignas(64) _Atomic uint32_t turn; /* odd while it is written */
	_Atomic uint32_t key;
	_Atomic(const char *) func, datatype, algo, proto; /* func NULL: empty */
	_Atomic uint32_t kind;              /* func | algo << 8 | proto << 16 | size class << 24 */
	_Atomic uint32_t datatype_bytes;
};
#define TRACK_MEMOS 16u /* of a communicator */

#define TRACK_KNOWN 3u

/* What the application's thread keeps of a communicator: one line of the cache, and that of a memo. Two threads in
 * one communicator at the same time are rare (CUDA's, when it replays a graph): then a number may be given twice, and nothing
 * else goes wrong. */
struct track_comm {
	_Alignas(128) _Atomic(void *) context; /* of the communicator while track_coll_fast does for it; NULL: it does not */
	_Atomic uint64_t index;               /* of the latest operation: its place in the order, from 1 */
	_Atomic uint32_t ring;                /* of the thread that called last, or another one's */
	_Atomic uint32_t groups;              /* calls so far */
	_Atomic uint32_t open_group;          /* the one that has not returned; 0: none */
	_Atomic bool members;                 /* Sends or Recvs joined it */
	_Atomic bool has_p2p;                 /* some were called */
	_Atomic uint16_t plan;                /* counts what NCCL launches: of the operations that are told now */
	_Atomic uint32_t group_thread;        /* who opened it, or a thread that looks the same */
	_Atomic uint32_t plan_joined;         /* the latest plan (its number) that Sends or Recvs joined */
	_Atomic(const char *) known[TRACK_KNOWN]; /* words of functions of seen_funcs; NULL: none */
	struct track_memo memos[TRACK_MEMOS];
	/* Of NCCL 2.28 and later: each Send and Recv is called in its GroupApi before any of them is told. */
	_Atomic uint32_t call_group;    /* number of the GroupApi of the latest call */
	_Atomic uint32_t group_calls;   /* so far in that one */
	_Atomic uint32_t lone_group;    /* the latest one with a single call, which was told */
	_Atomic uint32_t seen_funcs;    /* a bit each: NCCL gives events of its operations */
	_Atomic uint32_t shared_cursor; /* slot of everybody's to look at first */
	_Atomic uint32_t crowded;       /* for so many operations more the thread's own slots are not searched */
	_Atomic uint8_t graph;          /* enum clockmix_graph */
	_Atomic uint64_t symmetric;     /* the latest symmetric collective with a time: its handle; 0: none */
	_Atomic uint16_t symmetric_plan; /* the plan that it is in */
};
_Static_assert(offsetof(struct track_comm, memos) == 64, "what every operation needs of it is one line");

/* A thread's own slots, of which it takes in turns. */
struct track_ring {
	_Alignas(64) _Atomic uint64_t owner; /* thread_word; 0: nobody's */
	_Atomic uint32_t cursor;             /* slot to look at first */
};
#define TRACK_RINGS 16u

struct track_options {
	bool p2p;                 /* follow Sends and Recvs */
	bool host_time;           /* hot/hosttime.h */
	uint8_t api;              /* NCCL's interface; 0: not known */
	enum box_timing timing;
};

struct track {
	/* Read by every event, written hardly ever. */
	_Atomic(struct box_op *) fast_ops; /* ops; slots that are all free while the fast functions must do nothing */
	struct box_op *ops;             /* box->ops */
	_Atomic bool active;            /* false in a forked child: the box is the parent's */
	_Atomic bool follows;           /* new operations; what is in flight is followed while `active` */
	_Atomic bool full;              /* the pool was, and nothing has been freed since */
	_Atomic bool labelled;          /* some operation had a label (hot/labels.h) */
	bool has_popcnt;                /* the processor has that instruction */
	struct track_options options;
	_Atomic uint32_t sample_every;  /* kernel events for one operation in so many; 0 and 1: for all */
	struct box *box;
	uint64_t ns_per_tick_q32;
	struct jsonring *json;          /* where finished operations go; NULL: nowhere */
	struct trace_op *traces;        /* one for each slot; NULL unless verbose */
	uint64_t clocks_ticks;          /* how long a comparison of the clocks holds */
	_Atomic uint64_t sweep_tick;    /* when the last round began: what it did not see is younger */
	_Atomic(int *) mask;            /* NCCL's activation mask; NULL while it may be gone */
	_Atomic int mask_all;           /* what we want of it, kernel events and all */
	_Atomic bool leaves_out;        /* while sampling without the mask: the operations of the next group */
	_Alignas(64) _Atomic uint32_t sample_count; /* groups while sample_every > 1 */
	_Alignas(64) _Atomic uint64_t hot_ticks; /* in our functions, of one operation in TRACK_HOT_SAMPLE */
	struct track_ring rings[TRACK_RINGS];
	struct track_comm comms[BOX_LIVE_COMMS];
	_Alignas(64) struct keys keys;
	struct groups groups;
	struct channels channels;
	struct skew_open skews[BOX_LIVE_COMMS];
	struct clockmix mixes[BOX_LIVE_COMMS];
	struct peers peers;
	struct labels labels;
	struct samples *samples; /* who takes what is in `ends`; NULL: nobody */
	struct ends ends;
};

/* How long the distance of the two clocks is believed: they drift. */
#define TRACK_CLOCKS_NS 10000000000ull
#define TRACK_HOT_SAMPLE 256u
/* Of one operation in so many of a communicator box_op.enqueue_tick is the time of the call. */
#define TRACK_CALL_SAMPLE 64u
_Static_assert(TRACK_HOT_SAMPLE % TRACK_CALL_SAMPLE == 0, "whose time in our functions is taken, its call is, too");
/* The Sends and Recvs of a larger group are sampled as one operation only. */
#define TRACK_GROUP_SAMPLES 8u
#define track_likely(x) __builtin_expect(!!(x), 1)
/* What every operation passes through: the linker puts these functions side by side, on as few pages and lines as can be. Where
 * in a line they begin must not be left to what is before them: on some processors a jump across 32 bytes is decoded anew
 * each time, which doubled the time of a channel. */
#define TRACK_HOT __attribute__((hot, aligned(64)))

/* Slots that are all free and stay so: for struct track.fast_ops. They take no memory until they are read. */
extern struct box_op track_no_ops[BOX_OPS];

/* Makes every slot free. The box must be new, and `track` zero or of an earlier box. */
void track_init(struct track *track, struct box *box, uint64_t ns_per_tick_q32,
		const struct track_options *options);

/* Follows nothing from now on: this is a forked child. */
void track_silence(struct track *track);
/* Whether to follow new operations. NCCL freezes its activation mask into a captured graph: whatever it is set to later,
 * each replay tells of its operations. Callers hold the inspector's lock. */
void track_follow(struct track *track, bool follows);
/* The same for one communicator that is there now. */
void track_follow_comm(struct track *track, unsigned comm);
/* Follows the times of all events, too; before the first event. */
void track_trace(struct track *track, struct trace_op *traces);

/* All that follow take any context and any handle, and give NULL when there is nothing to follow. */

/* A Coll or P2p. */
void *track_operation(struct track *track, void *context, const struct event *event);
/* The same for a Coll of v4 and later. Gives 0. */
TRACK_HOT int track_coll(struct track *track, void *context, const struct abi_coll *coll, void **handle);
/* The same for a P2p of v4 and later. `call` and `plan`: what its call and its plan got. Gives 0. */
TRACK_HOT int track_p2p(struct track *track, void *context, void *call, void *plan, const struct abi_p2p *p2p, void **handle);
/* One that a symmetric-memory kernel runs; `call`: what its call got. */
int track_symmetric_coll(struct track *track, void *context, void *call, const struct abi_coll *coll, void **handle);
/* A call of a collective, for which an operation is to follow, or not. */
void track_coll_call(struct track *track, void *context, const struct event *event);
/* A call into a graph: its operations follow at each launch. */
void track_captured_call(struct track *track, void *context, const struct event *event);
/* A collective that copy engines run: it is counted, without a time. NCCL's count is that of one peer where each has its
 * part; the bytes are those of all, as of a group of Sends and Recvs (hot/groups.h). */
void track_copy_engine(struct track *track, void *context, const struct abi_ce_coll *ce);
/* Those bytes. */
uint64_t track_copy_engine_bytes(const struct track *track, const void *context, const struct abi_ce_coll *ce);
/* v1 to v3: id, name and rank come with each event. True for the one that named the communicator. */
bool track_name(struct track *track, void *context, uint64_t id, const char *name, int rank);
/* A phase of a channel (v7) ended: the one of waiting for the peers. */
void track_phase_stop(struct track *track, void *handle, uint64_t gpu_ns);
/* What v7 says besides of an operation that has just begun; with traces only. NULL: no variant. */
void track_note(struct track *track, void *operation, uint64_t user_tag, const char *kernel_variant);
/* NCCL's stop of a Coll or P2p: a line of the traces. */
void track_enqueued(struct track *track, void *operation);

/* Whatever the inline functions below cannot do with a few instructions. Like NCCL's own they give 0, so that
 * their caller ends with a jump and needs no frame. */
void *track_kernel_start_slowly(struct track *track, void *operation, unsigned channel, uint64_t gpu_ns);
int track_kernel_stop_slowly(struct track *track, void *kernel, uint64_t gpu_ns);
TRACK_HOT int track_last_kernel(struct track *track, struct box_op *op, uint32_t generation);
int track_group_stop_slowly(struct track *track, uint64_t word);
/* While sampling: asks NCCL for the kernel events of the next group, or not. */
void track_sample_next(struct track *track);

/* The slot of a handle, whatever the handle. */
static inline struct box_op *track_fast_op(struct track *track, uint64_t word)
{
	char *ops = (char *)atomic_load_explicit(&track->fast_ops, memory_order_relaxed);

	return (struct box_op *)(ops + (word & (uint64_t)(BOX_OPS - 1) << HANDLE_SLOT_SHIFT));
}

/* One channel begins on the GPU. False: not done yet, track_kernel_start_slowly does it.
 *
 * Between its check and its stores the slot may pass to another operation: only if the pool is full and the application's
 * thread gives this one up just now, for what the writer's gives up rests first. Then a channel too many is in that one. The
 * channels of one operation are reported by one thread, so plain loads and stores do. */
static inline bool track_kernel_start_fast(struct track *track, void *operation, unsigned channel, uint64_t gpu_ns,
					   void **handle)
{
	uint64_t word = handle_word(operation);
	struct box_op *op = track_fast_op(track, word);

	/* Where nothing is to be done all slots have 0 for a handle. */
	if (!track_likely(word && atomic_load_explicit(&op->handle, memory_order_acquire) == word && channel < 64))
		return false;
	uint64_t started = atomic_load_explicit(&op->started_channels, memory_order_relaxed);

	/* What the application's thread has written is wanted at the end: have it here by then. */
	if (!track_likely(started))
		box_prefetch_to_write(op);
	atomic_store_explicit(&op->started_channels, started | 1ull << channel, memory_order_relaxed);
	word_lower(&op->gpu_start_ns, gpu_ns);
	*handle = handle_of(word + (HANDLE_KERNEL - HANDLE_OPERATION) + ((uint64_t)channel << HANDLE_CHANNEL_SHIFT));
	return true;
}

static inline void *track_kernel_start(struct track *track, void *operation, unsigned channel, uint64_t gpu_ns)
{
	void *handle;

	return track_kernel_start_fast(track, operation, channel, gpu_ns, &handle) ?
		       handle : track_kernel_start_slowly(track, operation, channel, gpu_ns);
}

/* Bits that are set. The oldest processors lack the instruction. */
static inline unsigned track_count(const struct track *track, uint64_t bits)
{
#if defined(__x86_64__)
	if (track_likely(track->has_popcnt)) {
		__asm__("popcnt %0, %0" : "+r"(bits) : : "cc");
		return (unsigned)bits;
	}
#else
	(void)track;
#endif
	bits -= bits >> 1 & 0x5555555555555555u;
	bits = (bits & 0x3333333333333333u) + (bits >> 2 & 0x3333333333333333u);
	return (unsigned)(((bits + (bits >> 4)) & 0x0f0f0f0f0f0f0f0fu) * 0x0101010101010101u >> 56);
}

/* One channel ended. NCCL <= 2.30 can stop what it did not start, with the handle of the channel's last operation. */
static inline __attribute__((always_inline)) int track_kernel_stop(struct track *track, void *kernel, uint64_t gpu_ns)
{
	uint64_t word = handle_word(kernel);
	struct box_op *op = track_fast_op(track, word);
	uint64_t handle = atomic_load_explicit(&op->handle, memory_order_acquire);
	uint64_t stopped = atomic_load_explicit(&op->stopped_channels, memory_order_relaxed);
	uint64_t started = atomic_load_explicit(&op->started_channels, memory_order_relaxed);

	unsigned channel;

	if (!track_likely(handle_is_channel_of(word, handle, &channel) && started >> channel & 1 &&
			  !(stopped >> channel & 1)))
		return track_kernel_stop_slowly(track, kernel, gpu_ns);
	stopped |= 1ull << channel;
	word_raise(&op->gpu_stop_ns, gpu_ns);
	/* After the time: the sweep completes what it finds stopped. */
	atomic_store_explicit(&op->stopped_channels, stopped, memory_order_release);
	if (started == stopped && track_count(track, started) >= atomic_load_explicit(&op->kind, memory_order_relaxed) >> 24)
		return track_last_kernel(track, op, handle_generation(word));
	return 0;
}

/* A phase of a channel (v7): the first one is waiting for the peers. */
static inline void *track_phase_start(struct track *track, void *kernel, unsigned phase)
{
	uint64_t word = handle_word(kernel);

	return phase == ABI_PHASE_SYNC && handle_is_used(word, HANDLE_KERNEL) &&
			       atomic_load_explicit(&track->active, memory_order_relaxed) ?
		       handle_of(handle_as(word, HANDLE_PHASE)) : NULL;
}

/* The number of a group or plan that CUDA's thread may begin, too. Never 0. */
static inline uint32_t track_next_group(struct track_comm *app)
{
	uint32_t number = atomic_fetch_add_explicit(&app->groups, 1, memory_order_relaxed) + 1;

	return number ? number : atomic_fetch_add_explicit(&app->groups, 1, memory_order_relaxed) + 1;
}

static inline uint32_t track_thread(void)
{
	return (uint32_t)(thread_word() >> 6);
}

/* What is told from now on is launched as another kernel. Two threads at the same time may give one number twice. */
static inline void track_next_plan(struct track_comm *app)
{
	uint16_t plan = atomic_load_explicit(&app->plan, memory_order_relaxed);

	atomic_store_explicit(&app->plan, (uint16_t)(plan + 1), memory_order_relaxed);
}

/* box_op.group of an operation that is told now. */
static inline uint32_t track_group_word(const struct track_comm *app, uint32_t group)
{
	return group | (uint32_t)atomic_load_explicit(&app->plan, memory_order_relaxed) << CLOCKMIX_PLAN_SHIFT;
}

/* The number of its group + 1; 0: none. */
static inline uint32_t track_group_of(const struct box_op *op)
{
	return atomic_load_explicit(&op->group, memory_order_relaxed) & ((1u << CLOCKMIX_PLAN_SHIFT) - 1);
}

/* A GroupApi begins. NCCL lets one thread at a time call it for a communicator. */
static inline void *track_group_start(struct track *track, void *context)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (!track_likely(comm != UINT32_MAX && atomic_load_explicit(&track->active, memory_order_relaxed)))
		return NULL;
	struct track_comm *app = &track->comms[comm];
	uint32_t number = atomic_load_explicit(&app->groups, memory_order_relaxed) + 1;

	number += !number;
	atomic_store_explicit(&app->groups, number, memory_order_relaxed);
	atomic_store_explicit(&app->open_group, number, memory_order_relaxed);
	atomic_store_explicit(&app->members, false, memory_order_relaxed);
	atomic_store_explicit(&app->group_thread, track_thread(), memory_order_relaxed);
	return handle_of((uint64_t)number << HANDLE_NUMBER_SHIFT | (uint64_t)comm << HANDLE_COMM_SHIFT | HANDLE_GROUP);
}

/* A Group of v1 to v4, which CUDA's thread begins, too, when it replays a graph. Never NULL for a communicator of
 * ours, with a record or without: NCCL would not tell of its operations then. */
void *track_old_group_start(struct track *track, void *context);

/* It has returned. Gives 0. */
static inline int track_group_stop(struct track *track, void *group)
{
	uint64_t word = handle_word(group);
	struct track_comm *app = &track->comms[handle_comm(word) % BOX_LIVE_COMMS];

	if (!track_likely(handle_kind(word) == HANDLE_GROUP &&
			  atomic_load_explicit(&app->open_group, memory_order_relaxed) == handle_number(word) &&
			  atomic_load_explicit(&track->sample_every, memory_order_relaxed) <= 1 &&
			  !atomic_load_explicit(&app->members, memory_order_relaxed)))
		return track_group_stop_slowly(track, word);
	atomic_store_explicit(&app->open_group, 0, memory_order_relaxed);
	return 0;
}

/* A Group of v5 and later: the operations of one kernel's plan, which begins here and is told in one go. A Send that is told
 * when its GroupApi is over, or belongs to another communicator than that, is in its plan's group: what a graph replays, a
 * communicator that does not block. NULL where no Sends can come, or they are in their GroupApi. */
static inline void *track_plan_start(struct track *track, void *context)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (comm == UINT32_MAX || !atomic_load_explicit(&track->active, memory_order_relaxed))
		return NULL;
	struct track_comm *app = &track->comms[comm];

	track_next_plan(app);
	if (!atomic_load_explicit(&app->has_p2p, memory_order_relaxed) ||
	    (atomic_load_explicit(&app->open_group, memory_order_relaxed) &&
	     atomic_load_explicit(&app->group_thread, memory_order_relaxed) == track_thread()))
		return NULL;
	return handle_of((uint64_t)track_next_group(app) << HANDLE_NUMBER_SHIFT |
			 (uint64_t)comm << HANDLE_COMM_SHIFT | HANDLE_PLAN);
}

/* All of it is told. */
void track_plan_stop(struct track *track, void *plan);

/* A Send or Recv is called in the GroupApi of that number. */
static inline void track_count_call(struct track_comm *app, uint32_t number)
{
	bool is_next = atomic_load_explicit(&app->call_group, memory_order_relaxed) == number;
	uint32_t calls = is_next ? atomic_load_explicit(&app->group_calls, memory_order_relaxed) : 0;

	atomic_store_explicit(&app->group_calls, calls + 1, memory_order_relaxed);
	if (!is_next)
		atomic_store_explicit(&app->call_group, number, memory_order_relaxed);
	if (!atomic_load_explicit(&app->has_p2p, memory_order_relaxed))
		atomic_store_explicit(&app->has_p2p, true, memory_order_relaxed);
}

/* A call of Send or Recv in a group: for struct event.parent. */
static inline void *track_p2p_call(struct track *track, void *context, void *group)
{
	uint64_t word = handle_word(group);
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (comm != UINT32_MAX) {
		track_count_call(&track->comms[comm], handle_number(word));
		clockmix_called(track, comm);
	}
	return handle_kind(word) == HANDLE_GROUP && track->options.p2p ?
		       handle_of(handle_as(word, HANDLE_P2P_CALL)) : NULL;
}

static inline void track_forget_known(struct track_comm *app)
{
	for (unsigned i = 0; i < TRACK_KNOWN; i++)
		atomic_store_explicit(&app->known[i], NULL, memory_order_relaxed);
}

/* A call of Send or Recv into a graph. */
static inline void track_captured_p2p(struct track *track, void *context)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	clockmix_captured(track, context);
	if (comm != UINT32_MAX)
		atomic_store_explicit(&track->comms[comm].has_p2p, true, memory_order_relaxed);
}

/* Whether NCCL is known to give events of the operations of a collective's calls: then a call tells nothing. */
static inline bool track_knows(struct track *track, const void *context, const char *func)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (comm == UINT32_MAX || !func)
		return false;
	for (unsigned i = 0; i < TRACK_KNOWN; i++)
		if (atomic_load_explicit(&track->comms[comm].known[i], memory_order_relaxed) == func)
			return true;
	return false;
}

/* A communicator with that context begins in that record, */
void track_new_comm(struct track *track, unsigned comm, void *context);
/* and ends. */
void track_end_comm(struct track *track, unsigned comm);

/* What becomes of a slot: of one that rests the sweep's next round makes a free one (slots_rest). */
enum track_slot { TRACK_SLOT_FREE, TRACK_SLOT_RESTS };

/* For upkeep/sweep.c. Each takes one use (generation) of a slot to its end, exactly once; false: it is over, or somebody else
 * is busy with its communicator. */
bool track_complete(struct track *track, struct box_op *op, uint32_t generation, enum track_slot after);
bool track_expire(struct track *track, struct box_op *op, uint32_t generation, enum track_slot after);
bool track_end_untimed(struct track *track, struct box_op *op, uint32_t generation, enum track_slot after);

/* The members without a slot of the group with that token are over (groups_slotless_over). False: somebody else is busy
 * with its communicator, the sweep will do it. */
bool track_slotless_over(struct track *track, uint64_t token, bool timed);

/* Whether the caller has the figures of a communicator to itself now; then track_leave. Never waits. */
bool track_enter(struct box_comm *comm);
void track_leave(struct box_comm *comm);

static inline bool track_in_use(uint32_t generation)
{
	return (generation & BOX_OP_STATE_MASK) == BOX_OP_USED;
}

static inline unsigned track_comm_index(const struct track *track, const struct box_comm *comm)
{
	return (unsigned)(comm - track->box->comms);
}

/* Our own clock, for events without one of the GPU. */
static inline uint64_t track_now_ns(const struct track *track)
{
	return clock_ticks_to_ns(clock_ticks(), track->ns_per_tick_q32);
}

static inline void track_drop(struct track *track, enum box_drop reason)
{
	atomic_fetch_add_explicit(&track->box->header->dropped[reason], 1, memory_order_relaxed);
}

#endif
