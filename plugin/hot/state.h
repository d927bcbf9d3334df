/* SPDX-License-Identifier: Apache-2.0 */
/* hot/state.h - what the hot path keeps, and the small questions about it that all its parts ask.
 *
 * The hot path is what runs in NCCL's own threads: from an event to counters, in preallocated
 * slots. It takes no lock, allocates nothing, makes no system call, logs nothing and has no
 * unbounded loop.
 *
 * An operation has a slot of the box from its start until its last kernel event. That event comes
 * from another thread, perhaps before the start has returned; this thread adds the operation to its
 * key and frees the slot. What NCCL calls the stop of an operation means that it is enqueued, and
 * is not followed.
 *
 * A handle is a number in a pointer (hot/handle.h). An event with the handle of an earlier use of
 * its slot is counted and does nothing.
 */
#ifndef NCCL_INSPECTOR_HOT_STATE_H
#define NCCL_INSPECTOR_HOT_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/clock.h"
#include "box/box.h"
#include "hot/channels.h"
#include "hot/ends.h"
#include "hot/groups.h"
#include "hot/handle.h"
#include "hot/keys.h"
#include "hot/owner.h"
#include "hot/peers.h"

struct jsonring;
struct samples;
struct trace_op;

/* The key of an operation that was there before, by the addresses of its strings (hot/memo.h). A
 * line of the cache each, written seldom: a reader looks at `turn` before and after. */
struct track_memo {
	_Alignas(64) _Atomic uint32_t turn; /* odd while it is written */
	_Atomic uint32_t key;
	_Atomic(const char *) func, datatype, algo, proto; /* func NULL: empty */
	_Atomic uint32_t kind; /* func | algo << 8 | proto << 16 | size class << 24 */
	_Atomic uint32_t datatype_bytes;
};
#define TRACK_MEMOS 16u /* of a communicator */

#define TRACK_KNOWN 3u

/* What the application's thread keeps of a communicator: an operation needs one line of the cache,
 * and that of a memo. Two threads in one communicator at the same time are rare (CUDA's, when it
 * replays a graph): then a number may be given twice, and nothing else goes wrong. */
struct track_comm {
	/* Of the communicator while its operations may take the quick way; NULL: they may not. */
	_Alignas(128) _Atomic(void *) context;
	_Atomic uint64_t index;      /* of the latest operation: its place in the order, from 1 */
	_Atomic uint32_t ring;       /* of the thread that called last, or another one's */
	_Atomic uint32_t groups;     /* calls so far */
	_Atomic uint32_t open_group; /* the one that has not returned; 0: none */
	_Atomic bool members;        /* Sends or Recvs joined it */
	_Atomic bool has_p2p;        /* some were called */
	_Atomic uint16_t plan; /* counts what NCCL launches: of the operations that are told now */
	_Atomic uint32_t group_thread; /* track_thread() of the one that opened it */
	_Atomic uint32_t plan_joined;  /* the latest plan (its number) that Sends or Recvs joined */
	/* Names of functions of seen_funcs, by address; NULL: none. */
	_Atomic(const char *) known[TRACK_KNOWN];
	struct track_memo memos[TRACK_MEMOS];
	/* Of NCCL 2.28 and later: each Send and Recv is called in its GroupApi before any of them
	 * is told. */
	_Atomic uint32_t call_group;    /* number of the GroupApi of the latest call */
	_Atomic uint32_t group_calls;   /* so far in that one */
	_Atomic uint32_t lone_group;    /* the latest one with a single call, which was told */
	_Atomic uint32_t seen_funcs;    /* a bit each: NCCL gives events of its operations */
	_Atomic uint32_t shared_cursor; /* slot of the shared half to look at first */
	/* For so many operations more the thread's own slots are not searched. */
	_Atomic uint32_t crowded;
	_Atomic uint8_t graph; /* enum clockmix_graph */
	/* The latest symmetric collective with a time: its handle; 0: none. */
	_Atomic uint64_t symmetric;
	_Atomic uint16_t symmetric_plan; /* the plan that it is in */
};
_Static_assert(offsetof(struct track_comm, memos) == 64,
               "what every operation needs of it is one line");

/* A thread's own slots, of which it takes in turns. */
struct track_ring {
	_Alignas(64) _Atomic uint64_t owner; /* owner_id; 0: nobody's */
	_Atomic uint32_t cursor;             /* slot to look at first */
};
#define TRACK_RINGS 16u

struct track_options {
	bool p2p;       /* follow Sends and Recvs */
	bool host_time; /* hot/hosttime.h */
	uint8_t api;    /* NCCL's interface; 0: not known */
	enum box_timing timing;
};

/* The operation of a communicator whose channels are looked at now (hot/skew.h). The thread that
 * reports its kernels writes the times. */
struct skew_open {
	_Alignas(64) _Atomic uint64_t operation; /* its handle; 0: none */
	_Atomic uint64_t stop_ns[BOX_CHANNELS];  /* GPU's clock */
};

/* Of an operation that is over: when its kernel began, and the latest operation that had been told
 * by then. */
struct clockmix_end {
	_Atomic uint64_t start_ns, told;
};

/* What the completion of its operations keeps of a communicator (hot/clockmix.h). A plan is what
 * NCCL launches as one kernel: those of a communicator run one after the other. The number of a
 * plan counts up, and wraps. */
struct clockmix {
	_Alignas(64) _Atomic uint64_t since; /* as box_comm.mixed_since */
	_Atomic uint64_t clear_until_ns;     /* hot/late.h: 0 while some are held back */
	_Atomic uint16_t plan;               /* the latest one of which an operation is over */
	/* v4: of the plan that ended last, of those before, and of those before these: the
	 * operation that began last. */
	_Alignas(64) struct clockmix_end latest, older, oldest;
};

#define LATE_HELD 64u /* of a communicator: as many as NCCL's ring has places */

/* An operation that is held back (hot/late.h). */
struct late_op {
	uint64_t stop_ns; /* GPU's clock */
	uint32_t slot, generation;
	uint16_t plan;
	bool is_decided, is_true;
};

/* Those of a communicator, and what is known of NCCL's thread from the operations that were looked
 * at. The caller has the communicator to itself. */
struct late {
	uint64_t until_ns; /* clear_until_ns, while that is 0 */
	/* Of the latest one that was looked at: its end by the GPU's clock, its place in the order,
	 * and when we heard of it. */
	uint64_t stop_ns, index, heard_tick;
	int64_t ahead_ns;    /* our clock before the GPU's, as of heard_tick */
	uint64_t spacing_ns; /* about the shortest time from end to end; 0: not known */
	uint32_t in_time;    /* so many in a row were told as they ended */
	bool is_behind;      /* some was not, since there were enough in a row */
	uint32_t count;
	uint16_t plan; /* of the latest one */
	struct late_op ops[LATE_HELD + 1];
};

/* v5 and v6: what was called of a communicator that CUDA graphs are captured of. */
enum clockmix_graph {
	CLOCKMIX_NO_GRAPH,
	CLOCKMIX_CAPTURED,   /* nothing since the last capture */
	CLOCKMIX_NOT_LATEST, /* something that is not captured */
};

/* Which labels each operation in flight has (hot/labels.h). Not touched until track.labelled. */
struct labels {
	/* By slot: generation of its use << 32, and the places + 1 in the box, a byte each. */
	_Alignas(64) _Atomic uint64_t noted[BOX_OPS];
};

struct track {
	/* Read by every event, written hardly ever. */
	/* `ops`; while the fast functions must do nothing, slots that are all free. */
	_Atomic(struct box_op *) fast_ops;
	struct box_op *ops;    /* box->ops */
	_Atomic bool active;   /* false in a forked child: the box is the parent's */
	_Atomic bool follows;  /* new operations; what is in flight is followed while `active` */
	_Atomic bool full;     /* the pool was, and nothing has been freed since */
	_Atomic bool labelled; /* some operation had a label (hot/labels.h) */
	bool has_popcnt;       /* the processor has that instruction */
	struct track_options options;
	/* Kernel events for one operation in so many; 0 and 1: for all. */
	_Atomic uint32_t sample_every;
	struct box *box;
	uint64_t ns_per_tick_q32;
	struct jsonring *json;       /* where finished operations go; NULL: nowhere */
	struct trace_op *traces;     /* one for each slot; NULL unless verbose */
	uint64_t clocks_ticks;       /* how long a comparison of the clocks holds */
	_Atomic uint64_t sweep_tick; /* when the last round began: what it did not see is younger */
	_Atomic(int *) mask;         /* NCCL's activation mask; NULL while it may be gone */
	_Atomic int mask_all;        /* what we want of it, kernel events and all */
	/* While sampling without the mask: the operations of the next group. */
	_Atomic bool leaves_out;
	_Alignas(64) _Atomic uint32_t sample_count; /* groups while sample_every > 1 */
	/* In our functions, of one operation in TRACK_HOT_SAMPLE. */
	_Alignas(64) _Atomic uint64_t hot_ticks;
	struct track_ring rings[TRACK_RINGS];
	struct track_comm comms[BOX_LIVE_COMMS];
	_Alignas(64) struct keys keys;
	struct groups groups;
	struct channels channels;
	struct skew_open skews[BOX_LIVE_COMMS];
	struct clockmix mixes[BOX_LIVE_COMMS];
	struct late lates[BOX_LIVE_COMMS];
	struct peers peers;
	struct labels labels;
	struct samples *samples; /* which take what is in `ends`; NULL: nobody does */
	struct ends ends;
};

/* How long the distance of the two clocks is believed: they drift. */
#define TRACK_CLOCKS_NS 10000000000ull
/* Of one operation in so many the time in our functions is taken. */
#define TRACK_HOT_SAMPLE 256u
/* Of one operation in so many of a communicator box_op.enqueue_tick is the time of the call, and of
 * so many first ones: a job of few steps has hardly more. */
#define TRACK_CALL_SAMPLE 64u
#define TRACK_CALL_FIRST 512u
_Static_assert(TRACK_HOT_SAMPLE % TRACK_CALL_SAMPLE == 0,
               "whose time in our functions is taken, its call is, too");
/* The Sends and Recvs of a larger group are sampled as one operation only. */
#define TRACK_GROUP_SAMPLES 8u
#define track_likely(x) __builtin_expect(!!(x), 1)
/* For functions that every operation passes through: the linker puts them side by side, on as few
 * pages and lines as possible. They begin at a line of the cache, whatever is before them: on some
 * processors a jump across 32 bytes is decoded anew each time, which doubled the time of a
 * channel. */
#define TRACK_HOT __attribute__((hot, aligned(64)))

/* Slots that are all free and stay so, for struct track.fast_ops while the fast functions must do
 * nothing. They take no memory until they are read. */
extern struct box_op all_free_ops[BOX_OPS];

/* Whether the fast functions may be used for communicators that live now. */
static inline bool track_is_fast(const struct track *track)
{
	return track->options.timing != BOX_TIMING_NONE && !track->traces &&
	       atomic_load_explicit(&track->follows, memory_order_relaxed);
}

/* Lets the fast functions work for the communicator of that record, or not, as its state wants it
 * now. Under the inspector's lock, or by a thread that calls NCCL for this communicator. */
void track_follow_comm(struct track *track, unsigned comm);

/* The fast functions do nothing for the communicator of that record from now on. Any thread. */
void track_end_comm(struct track *track, unsigned comm);

/* Whether the time of the call is taken of a communicator's operation with that number. */
static inline bool track_takes_call(uint64_t index)
{
	return !track_likely(index % TRACK_CALL_SAMPLE && index > TRACK_CALL_FIRST);
}

/* Whether a slot with that generation has an operation in flight. */
static inline bool track_in_use(uint32_t generation)
{
	return (generation & BOX_OP_STATE_MASK) == BOX_OP_USED;
}

/* The index of a record in box->comms. */
static inline unsigned track_comm_index(const struct track *track, const struct box_comm *comm)
{
	return (unsigned)(comm - track->box->comms);
}

/* Our own clock in ns, for events without a time of the GPU. */
static inline uint64_t track_now_ns(const struct track *track)
{
	return clock_ticks_to_ns(clock_ticks(), track->ns_per_tick_q32);
}

/* Counts an event or an operation that could not be measured. */
static inline void track_drop(struct track *track, enum box_drop reason)
{
	atomic_fetch_add_explicit(&track->box->header->dropped[reason], 1, memory_order_relaxed);
}

/* The calling thread, in 32 bits: two threads may have the same. */
static inline uint32_t track_thread(void)
{
	return (uint32_t)(owner_id() >> 6);
}

/* Returns the number of a group or plan that begins, which CUDA's thread may do at the same time;
 * never 0. */
static inline uint32_t track_next_group(struct track_comm *app)
{
	uint32_t number = atomic_fetch_add_explicit(&app->groups, 1, memory_order_relaxed) + 1;

	return number ? number
	              : atomic_fetch_add_explicit(&app->groups, 1, memory_order_relaxed) + 1;
}

/* What NCCL tells from now on is launched as another kernel. Two threads at the same time may give
 * one number twice. */
static inline void track_next_plan(struct track_comm *app)
{
	uint16_t plan = atomic_load_explicit(&app->plan, memory_order_relaxed);

	atomic_store_explicit(&app->plan, (uint16_t)(plan + 1), memory_order_relaxed);
}

/* The upper half of box_op.group. */
#define CLOCKMIX_PLAN_SHIFT 16u

/* box_op.group of an operation that is told now. */
static inline uint32_t track_group_and_plan(const struct track_comm *app, uint32_t group)
{
	return group | (uint32_t)atomic_load_explicit(&app->plan, memory_order_relaxed)
	                   << CLOCKMIX_PLAN_SHIFT;
}

/* The number of an operation's group + 1; 0: it has none. */
static inline uint32_t track_group_of(const struct box_op *op)
{
	return atomic_load_explicit(&op->group, memory_order_relaxed) &
	       ((1u << CLOCKMIX_PLAN_SHIFT) - 1);
}

/* Each call of a collective is looked at from now on (track_knows). */
static inline void track_forget_known(struct track_comm *app)
{
	for (unsigned i = 0; i < TRACK_KNOWN; i++)
		atomic_store_explicit(&app->known[i], NULL, memory_order_relaxed);
}

#endif
