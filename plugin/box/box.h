/* SPDX-License-Identifier: Apache-2.0 */
/* box/box.h - what a process knows of its communication, in one mapped file.
 *
 * The hot path adds to these tables with relaxed atomics, so whatever kills the process, everything
 * up to its last event is in the file. This header is a wire format:
 * python/nccl_inspector/box/reader.py reads it, and packaging/doc/internals.md describes it. All
 * numbers are little-endian. A reader uses pread, never mmap.
 *
 * Figures only grow, except where a comment says otherwise. An operation is added to a struct
 * box_key (or box_peer) between one more in `begun` and one more in `ops`: a reader that reads
 * `ops` first and `begun` last, and finds them equal, has it whole.
 *
 * What NCCL's application thread writes and what its kernel-event thread writes lie on cache lines
 * of their own.
 */
#ifndef NCCL_INSPECTOR_BOX_BOX_H
#define NCCL_INSPECTOR_BOX_BOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/descriptor.h"
#include "box/histogram.h"

#define BOX_MAGIC "NCCLIBOX"
#define BOX_VERSION 6u
#define BOX_STEM "nccl_inspector_"

/* Communicators counted in full at one time: sixteen of each of eight GPUs. */
#define BOX_LIVE_COMMS 128u
#define BOX_FOLDED_COMMS 32u /* destroyed ones, folded by (name, nranks, nnodes, rank) */
#define BOX_COMMS (BOX_LIVE_COMMS + BOX_FOLDED_COMMS)
/* The last two are of no communicator alone: "(others)" has folded ones that find no other record,
 * "(more kinds)" what live communicators do beyond the kinds that have a key of their own
 * (hot/keys.h). */
#define BOX_COMM_OTHERS (BOX_COMMS - 1)
#define BOX_COMM_MORE (BOX_COMMS - 2)
#define BOX_KEYS 256u
#define BOX_OPS 4096u /* operations in flight; a power of two */
#define BOX_GPUS 16u
#define BOX_PEERS 1024u       /* (communicator, Send or Recv, peer); a power of two */
#define BOX_LINES 8u          /* time lines */
#define BOX_LINE_WINDOWS 384u /* of each; an even number */
#define BOX_LINE_S 10u        /* length of a window while there is room for all */
#define BOX_NETS 256u         /* (communicator, direction, peer) of network detail */
#define BOX_NET_QUEUES 4u     /* queue pairs of each that are told apart */
#define BOX_SAMPLES 32768u    /* exact records of operations */
#define BOX_SAMPLE_KINDS 256u
#define BOX_SAMPLE_BITS 34u /* length and period of the first bursts: 17 s, without a gap */
#define BOX_SAMPLE_LENGTH_BITS_MIN 24u
#define BOX_SAMPLE_PERIOD_BITS_MAX 48u
#define BOX_UNIONS 8u          /* GPUs whose busy time is followed */
#define BOX_UNION_WINDOWS 384u /* of each; an even number */
#define BOX_CHANNELS 64u       /* of an operation, at most */
#define BOX_UNION_S 10u        /* length of a window while there is room for all */
/* Places of each kind of label; the last one is of all others of the kind. */
#define BOX_LABEL_USER_TAGS 24u
#define BOX_LABEL_KERNELS 16u
#define BOX_LABEL_ROOTS 24u
#define BOX_LABELS 64u
#define BOX_LABEL_TEXT 40u

/* Why an event could not be measured: index of box_header.dropped, and the label
 * `reason` of nccl_inspector_events_dropped_total. */
enum box_drop {
	BOX_DROP_NO_SLOT,     /* more operations in flight than there are slots for (hot/slots.h) */
	BOX_DROP_NO_COMM,     /* operation of a communicator beyond BOX_LIVE_COMMS */
	BOX_DROP_NO_KEY,      /* more than BOX_KEYS kinds of operation */
	BOX_DROP_EXPIRED,     /* operation never completed, and its slot was needed */
	BOX_DROP_IMPLAUSIBLE, /* clocks that cannot be true */
	BOX_DROP_STALE,       /* event for an operation that is over */
	BOX_DROP_NO_PEER,     /* Send or Recv beyond BOX_PEERS: in its key, but not by peer */
	BOX_DROP_NO_GROUP,    /* grouped Send or Recv that could not be seen as part of its group */
	BOX_DROP_JSON,        /* line that the JSON file has not got */
	BOX_DROPS,
	BOX_DROP_REASONS = 16,
};

/* Our numbers for NCCL's names; 0 is always "not known". */
enum box_func {
	BOX_FUNC_UNKNOWN,
	BOX_FUNC_ALLREDUCE,
	BOX_FUNC_ALLGATHER,
	BOX_FUNC_REDUCESCATTER,
	BOX_FUNC_BROADCAST,
	BOX_FUNC_REDUCE,
	BOX_FUNC_ALLTOALL,
	BOX_FUNC_GATHER,
	BOX_FUNC_SCATTER,
	BOX_FUNC_SEND,
	BOX_FUNC_RECV,
	BOX_FUNC_SENDRECV,
	BOX_FUNCS,
};
enum box_algo {
	BOX_ALGO_UNKNOWN,
	BOX_ALGO_TREE,
	BOX_ALGO_RING,
	BOX_ALGO_COLLNET_DIRECT,
	BOX_ALGO_COLLNET_CHAIN,
	BOX_ALGO_NVLS,
	BOX_ALGO_NVLS_TREE,
	BOX_ALGO_PAT,
	/* Ours, for what NCCL runs without one of its algorithms: */
	BOX_ALGO_GROUP, /* Sends and Recvs of one call, such as an all-to-all */
	BOX_ALGO_CE,    /* copy engines */
	BOX_ALGO_SYM,   /* symmetric-memory kernels */
	BOX_ALGOS,
};
enum box_proto { BOX_PROTO_UNKNOWN, BOX_PROTO_LL, BOX_PROTO_LL128, BOX_PROTO_SIMPLE, BOX_PROTOS };

struct box_gpu {       /* 128 bytes; unused entries have an empty uuid */
	char uuid[48]; /* "GPU-xxxxxxxx-...", empty when the driver did not tell */
	char pci_bus_id[32];
	int32_t minor; /* of /dev/nvidiaN, -1 when not known */
	uint32_t used;
	char label[40]; /* value of the label `gpu` */
};

/* Converts ticks: ns = ticks * ns_per_tick_q32 / 2^32. For a time of day count from beat_tick and
 * beat_real_ns, which are near, rather than from here. */
struct box_clock {
	uint64_t tick0;
	uint64_t real0_ns; /* CLOCK_REALTIME at tick0 */
	uint64_t ns_per_tick_q32;
};

/* Whose clock times an operation: the API version decides, so a process has one. */
enum box_timing {
	BOX_TIMING_NONE, /* v1, v2: operations are counted only */
	BOX_TIMING_GPU,  /* v4 and later */
	BOX_TIMING_CPU,  /* v3: when NCCL's thread noticed begin and end */
};

/* Why nothing is measured at present. */
enum box_silent {
	BOX_SILENT_NOT,
	BOX_SILENT_DISABLED, /* the site's kill switch */
	BOX_SILENT_DENIED,   /* this NCCL is on the site's list */
	/* AMD's library: its times are of another clock, and its names mean something else. */
	BOX_SILENT_RCCL,
};

enum box_state {
	BOX_LIVE = 1,
	BOX_FINALIZED = 2, /* the last communicator was destroyed */
	BOX_EXITED = 3,    /* the process ended in order, communicators and all */
};

/* How often something was done on the host, and how long that took; `max_ns`: at most. */
struct box_host_time { /* 24 bytes */
	_Atomic uint64_t count, ns, max_ns;
};

struct box_header { /* 4096 bytes */
	char magic[8];
	uint32_t version;
	uint32_t header_bytes;
	uint64_t file_bytes;
	uint32_t comm_offset, comm_bytes, comm_count;
	uint32_t key_offset, key_bytes, key_count;
	uint32_t hist_offset, hist_bytes, hist_count; /* one histogram of hist_bytes per key */
	uint32_t op_offset, op_bytes, op_count;
	uint32_t peer_offset, peer_bytes, peer_count;
	uint32_t line_offset, line_bytes, line_count;
	uint32_t net_offset, net_bytes, net_count;
	uint32_t sample_offset, sample_bytes, sample_count;
	uint32_t sample_kind_offset, sample_kind_bytes, sample_kind_count;
	uint32_t union_offset, union_bytes, union_count;
	uint32_t skew_offset, skew_bytes, skew_count;
	uint32_t label_offset, label_bytes, label_count;
	uint32_t pid, uid, step_id, procid, localid; /* UINT32_MAX: not known */
	uint32_t api_version, nccl_version;          /* NCCL: 23007 is 2.30.7, 0 not known */
	uint32_t array_job_id, array_task_id;        /* as in 810_3; UINT32_MAX: no array */
	uint32_t timing;                             /* enum box_timing */
	uint64_t job_id;                             /* 0: not known */
	char plugin_version[16];
	char node[64]; /* SLURMD_NODENAME, else the host name */
	struct box_clock clock;
	struct box_gpu gpu[BOX_GPUS];
	/* What follows changes while the process runs. */
	_Atomic uint32_t state;      /* enum box_state; goes back to live when NCCL is used again */
	_Atomic uint32_t layout_seq; /* odd while a communicator is being recorded or folded */
	_Atomic uint64_t beat_tick;  /* the beat thread's last round; ages count from here */
	_Atomic uint64_t beat_real_ns;
	_Atomic uint64_t dropped[BOX_DROP_REASONS];
	_Atomic uint64_t series_dropped;
	_Atomic uint64_t self_ns; /* CPU time of the plugin's own threads */
	_Atomic uint64_t comms_created, comms_destroyed;
	_Atomic uint64_t hot_ns; /* time inside NCCL's calls, from samples */
	_Atomic uint32_t silent; /* enum box_silent */
	/* Kernel events are asked for one operation in so many; 1: for all. */
	_Atomic uint32_t sampling;
	_Atomic uint64_t silent_ns;  /* how long nothing was measured, summed */
	_Atomic uint64_t sampled_ns; /* how long `sampling` was above 1, summed */
	_Atomic uint64_t json_lines;
	_Atomic uint32_t net_on; /* network detail is being taken; net_ns: summed */
	/* Operations and steps of the proxy that were told meanwhile and not followed. */
	_Atomic uint32_t net_missed;
	_Atomic uint64_t net_ns;
	/* Samples: struct box_sample, and struct box_union. */
	_Atomic uint32_t sample_seq; /* odd while samples are dropped or windows moved */
	_Atomic uint32_t sample_length_bits, sample_period_bits;
	_Atomic uint32_t net_every;    /* network detail follows one operation in so many */
	_Atomic uint64_t samples_kept; /* how many are in the table now */
	/* Operations that were over and found no room on their way to the table. */
	_Atomic uint64_t samples_lost;
	/* Of an operation for which no kind was left, or no union. */
	_Atomic uint64_t samples_unkinded;
	struct box_host_time calls, launches; /* with the setting `host_time` (hot/hosttime.h) */
	/* About so many operations of the proxy were not followed because others were, in their
	 * place. */
	_Atomic uint64_t net_left_out;
};

enum box_comm_state { BOX_COMM_FREE, BOX_COMM_LIVE, BOX_COMM_DESTROYED, BOX_COMM_FOLDED };

/* v1 to v3: the first event tells id, name and rank. */
enum box_comm_named { BOX_COMM_NAMELESS, BOX_COMM_NAMED, BOX_COMM_BEING_NAMED };

/* Why NCCL gives the operations of a communicator the times of other ones (hot/clockmix.h). */
enum box_mixed {
	BOX_MIXED_NOT,
	BOX_MIXED_SELF,      /* to 2.30: a rank sent something to itself */
	BOX_MIXED_GRAPH,     /* to 2.30: a CUDA graph was launched between other calls */
	BOX_MIXED_BROADCAST, /* from 2.31 on: a Broadcast was called */
	/* NCCL was not asked for kernel events for a time, or while a graph was captured. */
	BOX_MIXED_UNASKED,
};

struct box_comm { /* 256 bytes */
	uint64_t id;
	_Atomic uint32_t state;      /* enum box_comm_state */
	_Atomic uint32_t generation; /* of the record: counts communicators that had it */
	int32_t nranks, nnodes;      /* 0: not known (v1 to v3) */
	int32_t rank;                /* -1: not known yet */
	uint32_t gpu;                /* index of box_header.gpu */
	uint64_t created_real_ns;
	uint64_t destroyed_real_ns; /* 0 while live */
	uint64_t folded;            /* communicators in this record */
	_Atomic uint32_t named;     /* enum box_comm_named */
	uint32_t reserved0;
	/* Operations of all functions; the index of one is its place in the order of enqueueing,
	 * from 1. The beat thread's count: enqueued is at least completed + untimed + lost + what
	 * is in flight (struct box_op). */
	_Alignas(64) _Atomic uint64_t enqueued;
	/* Of these: NCCL gives no time for them (struct box_key.untimed_ops). */
	_Atomic uint64_t untimed;
	/* Of these: not followed, or given up: the reason is in box_header.dropped. */
	_Atomic uint64_t lost;
	/* Rounds of the beat thread up to the last in which something had completed: struct
	 * box_key.queued_ns. */
	_Atomic uint64_t looks;
	_Atomic uint64_t mixed_since; /* operations from this index on have no time; 0: all have */
	_Atomic uint32_t mixed_why;   /* enum box_mixed */
	uint32_t reserved1;
	uint64_t reserved2[2];
	/* The kernel-event side. In flight is what has a struct box_op. */
	_Alignas(64) _Atomic uint32_t busy; /* odd while somebody adds: exactly one does */
	_Atomic uint32_t end_place;         /* the plugin's own (hot/ends.h) */
	_Atomic uint64_t completed;
	_Atomic uint64_t started;       /* whose kernel began, among those that are over */
	_Atomic uint64_t last_sequence; /* highest index that completed */
	/* When the beat thread last found one more; 0 before the first. */
	_Atomic uint64_t last_progress_tick;
	/* GPU clock and our clock: smallest distance in the present and in the last 10 s. It may
	 * fall. */
	_Atomic int64_t clock_ahead_ns, clock_ahead_before_ns;
	_Atomic uint64_t clock_since_tick;
	_Alignas(64) char name[64]; /* printable ASCII */
};

/* How much later than its first one each channel of a communicator ended: sums over the collectives
 * that were looked at (hot/skew.h), of two channels and more. Forgotten when the communicator is
 * folded. */
struct box_skew { /* 576 bytes, at the place of the communicator */
	_Atomic uint64_t ops;
	_Atomic uint64_t time_ns;  /* from the first begin of a channel to the last end */
	_Atomic uint64_t channels; /* a bit each: of any of these operations */
	uint64_t reserved[5];
	_Atomic uint64_t late_ns[BOX_CHANNELS];
};

struct box_key {                /* 128 bytes: one kind of operation of one communicator */
	_Atomic uint64_t begun; /* stored first: equal to ops while nobody is adding */
	_Atomic uint64_t ops;   /* stored last */
	_Atomic uint64_t bytes;
	_Atomic uint64_t busy_ns;
	_Atomic uint64_t min_ns, max_ns;    /* min_ns 0 before the first; min only shrinks */
	_Atomic int64_t log2_rate_q20;      /* sum over operations of log2(bytes / ns), in 2^-20 */
	_Atomic uint64_t last_index;        /* of the operations in here (struct box_comm) */
	_Alignas(64) _Atomic uint32_t used; /* 1: the members below are valid */
	uint32_t comm;                      /* index of struct box_comm */
	uint8_t func, size_class, algo, proto; /* size_class: floor(log2(bytes)); 0 for 0 and 1 */
	_Atomic uint32_t queued_looks; /* that found any of it in the GPU's queue: see queued_ns */
	_Atomic uint64_t first_index;
	/* Operations of this kind without a time: not among ops and bytes. */
	_Atomic uint64_t untimed_ops, untimed_bytes;
	/* v7 with kernel phases: of `ops`, how many told them, and their time before any channel
	 * had its peers. */
	_Atomic uint64_t phased_ops, wait_ns;
	/* About what all of `ops` waited in the GPU's queue together, from the call to their
	 * kernel's begin: how many did in each of box_comm.looks, times the time since the look
	 * before. Without hangs, of over two minutes. */
	_Atomic uint64_t queued_ns;
};

/* State in the two lower bits of box_op.generation: only a slot in use has valid members. One that
 * was given up is nobody's for a while, because the thread of its kernels may yet write to it. */
enum box_op_state { BOX_OP_FREE, BOX_OP_FILLING, BOX_OP_USED, BOX_OP_GIVEN_UP };
#define BOX_OP_STATE_MASK 3u

#define BOX_ENTRY_NONE UINT32_MAX
/* One of several collectives that one kernel runs: its times are theirs together. */
#define BOX_ENTRY_PLAN (UINT32_MAX - 1)

struct box_op {                      /* 128 bytes: one operation in flight */
	_Atomic uint32_t generation; /* counts up by four a use, + enum box_op_state */
	_Atomic uint32_t comm;       /* index of struct box_comm */
	_Atomic uint32_t comm_generation;
	_Atomic uint32_t key;        /* index of struct box_key, UINT32_MAX: none */
	_Atomic uint32_t kind;       /* func | algo << 8 | proto << 16 | channels << 24 */
	_Atomic int32_t peer;        /* -1: a collective */
	_Atomic uint32_t peer_entry; /* index of struct box_peer, BOX_ENTRY_NONE, BOX_ENTRY_PLAN */
	/* The plugin's own: number of its group + 1, 0: none | of its plan << 16. */
	_Atomic uint32_t group;
	_Atomic uint64_t index; /* struct box_comm */
	/* NCCL's seqNumber, from 0: per communicator and function. Of a Send or Recv its number
	 * among those of this function with this peer, from 1. */
	_Atomic uint64_t sequence;
	_Atomic uint64_t bytes;
	/* 0: the beat thread has not seen it yet, and then it says when it did. */
	_Atomic uint64_t enqueue_tick;
	/* 0 in a free slot, and again when it is freed. */
	_Alignas(64) _Atomic uint64_t gpu_start_ns; /* GPU clock (v3: ours); 0: not yet */
	_Atomic uint64_t gpu_stop_ns;
	_Atomic uint64_t started_channels, stopped_channels; /* a bit each */
	/* v7: when the first channel had its peers, GPU clock; 0: not yet. */
	_Atomic uint64_t synced_ns;
	_Atomic uint64_t event_tick; /* when the beat thread last saw the channels change */
	/* It was enqueued after that; 0: after the beat thread's latest round. */
	_Atomic uint64_t known_tick;
	/* The plugin's own: what NCCL is given for this use, or a free slot's next. */
	_Atomic uint64_t handle;
};

struct box_peer { /* 64 bytes: Sends or Recvs between this rank and one other */
	_Atomic uint64_t begun, ops, bytes, busy_ns; /* as in struct box_key */
	_Atomic int64_t log2_rate_q20;
	_Atomic int32_t best_rate_q20; /* highest log2(bytes / ns) */
	int32_t peer;
	_Atomic uint32_t used; /* 1: the members around are valid */
	uint32_t comm;
	uint32_t func;
	uint32_t reserved;
};

/* One window of a time line. Windows without operations are not there. */
struct box_window {               /* 64 bytes */
	_Atomic uint32_t start_s; /* CLOCK_REALTIME, a multiple of the line's window_s */
	/* The beat thread looked that late: operations from then are in here too. */
	_Atomic uint32_t late_ms;
	_Atomic uint64_t ops, bytes, busy_ns;
	/* Within 1.6 %; of a merged window the median is the mean, by operations, of the parts'. */
	_Atomic uint64_t min_ns, median_ns;
	_Atomic uint64_t first_index, last_index;
};

/* A time line of one of the busiest (communicator, function, size class). */
struct box_line { /* 64 bytes, then its windows */
	uint64_t comm_id;
	uint32_t comm, comm_generation;
	_Atomic uint32_t used; /* 1: valid; another kind may take it over: then since_s changes */
	_Atomic uint32_t windows;  /* in use; the last one may still grow */
	_Atomic uint32_t window_s; /* BOX_LINE_S, doubled whenever the line is full */
	uint32_t since_s;          /* CLOCK_REALTIME: operations before are not in the line */
	int32_t rank;
	uint8_t func, size_class, reserved0[2];
	uint64_t reserved1[3];
	struct box_window window[BOX_LINE_WINDOWS];
};

/* What the network proxy waits for (NCCL's ProxyStep states). */
enum box_net_state {
	BOX_NET_GPU,   /* send: for the GPU's data; receive: for the GPU to take them */
	BOX_NET_PEER,  /* send: for the receiver's credit */
	BOX_NET_WIRE,  /* send: on the network; receive: for the data, whoever is late */
	BOX_NET_FLUSH, /* receive: flush to the GPU's memory */
	BOX_NET_STATES,
};

/* What went over one queue pair of NCCL's InfiniBand transport. Each adapter numbers its own
 * pairs. */
struct box_net_queue {             /* 24 bytes */
	_Atomic uint64_t requests; /* that were posted */
	_Atomic uint64_t bytes;    /* that they sent; NCCL does not tell how many a receive takes */
	/* device << BOX_QUEUE_NUMBER_BITS | number of the queue pair; 0: free. The device is which
	 * one of the adapters that NCCL has merged for this connection, from 0; a connection of one
	 * adapter only has device 0. */
	_Atomic uint32_t pair;
	uint32_t reserved;
};
#define BOX_QUEUE_NUMBER_BITS 24
#define BOX_QUEUE_DEVICES 4u /* that NCCL merges at most */

/* One direction between this rank and one peer. The time of a channel counts for the state of its
 * oldest unfinished step: those behind it are said to wait for the GPU, whatever they wait for. The
 * beat thread adds what is waited for just now. */
struct box_net {                             /* 192 bytes */
	_Atomic uint64_t steps;              /* that were followed */
	_Atomic uint64_t ns[BOX_NET_STATES]; /* summed over channels */
	_Atomic uint32_t used; /* 1: valid, if the communicator's record still has the generation */
	uint32_t comm, comm_generation;
	int32_t peer;
	uint32_t is_send;
	/* What NCCL told of them and cannot be true, or is of a network that we do not know. */
	_Atomic uint32_t refused;
	/* On the network, as NCCL told of each step: with the flags of LL and LL128. */
	_Atomic uint64_t bytes;
	/* The rest only comes from an NCCL that was built with NET_PROFILER=1. */
	_Atomic uint64_t socket_requests;             /* of NCCL's socket transport */
	_Atomic uint64_t other_requests, other_bytes; /* over queue pairs beyond those below */
	struct box_net_queue queues[BOX_NET_QUEUES];
};

/* A kind of sampled operation. Kinds are never changed nor used again, so that samples outlive
 * their communicator. */
struct box_sample_kind { /* 128 bytes */
	uint64_t comm_id;
	uint64_t created_real_ns; /* of the communicator */
	int32_t nranks, nnodes, rank;
	uint32_t gpu;         /* index of box_header.gpu */
	uint32_t incarnation; /* counts communicators of this id and rank in the process, from 0 */
	uint8_t func, size_class, algo, proto;
	_Atomic uint32_t used; /* 1: valid */
	uint32_t reserved0;
	uint64_t reserved1[2];
	char name[64];
};

enum box_sample_flag {
	BOX_SAMPLE_GROUP = 1,     /* the Sends and Recvs of a group as one operation */
	BOX_SAMPLE_CPU_TIMED = 2, /* timed by the CPU (BOX_TIMING_CPU) */
	/* Four bits, n: how well box_sample.queued_us is known. 0: exactly. Else the true time is
	 * shorter, by 2^n ms at most; BOX_SAMPLE_AT_LEAST: it is longer. */
	BOX_SAMPLE_WITHIN = 15 << 2,
};
#define BOX_SAMPLE_WITHIN_SHIFT 2
#define BOX_SAMPLE_AT_LEAST 15u
#define BOX_SAMPLE_PEER_BEYOND 65535u

/* An operation, exactly. In the table are those that ended in a burst: at a CLOCK_REALTIME with
 *     (ns & (2^sample_period_bits - 1)) < 2^sample_length_bits.
 * Bursts only become shorter and rarer, by powers of two, so those of any two processes are the
 * same or one's contain the other's. The table is in no order. */
struct box_sample {                /* 32 bytes */
	_Atomic uint64_t start_ns; /* GPU's clock (v3: ours); stored last; 0: free */
	uint64_t stop_ns;
	/* Which one it is: the same number on all ranks of a communicator. From 1, the low 32 bits
	 * of: NCCL's seqNumber of the communicator and function, + 1; of a Send or Recv its number
	 * among those of this function with this peer; of a group its number among the groups of
	 * this function. */
	uint32_t index;
	uint16_t kind; /* index of struct box_sample_kind */
	uint16_t peer; /* its rank + 1; 0: a collective or a group */
	/* From the call to the begin of the kernel, at least 1; 0: not known. Known exactly of a
	 * communicator's first 512 operations, then of one in 64, and of all with JSON lines. Of
	 * one that begins long after the operation before it has ended, it is known within a
	 * fraction of a second. */
	uint32_t queued_us;
	/* Bytes are mantissa << (size_class - 15), rounded down; for size_class < 15 just
	 * mantissa. */
	uint16_t mantissa;
	uint8_t flags;    /* enum box_sample_flag */
	uint8_t channels; /* 0 of a group */
};

/* How long a GPU was in at least one operation. Windows without operations are not there. */
struct box_union_window {            /* 32 bytes */
	_Atomic uint32_t start_s;    /* CLOCK_REALTIME, a multiple of window_s; they rise */
	_Atomic uint32_t operations; /* that ended in it: members of a group, or the group */
	_Atomic uint32_t lost; /* operations seen to be over then whose time is not in busy_ns */
	uint32_t reserved;
	_Atomic uint64_t busy_ns; /* at most window_s */
	/* CLOCK_REALTIME less the GPU's clock when the window was last added to. */
	_Atomic int64_t ahead_ns;
};

struct box_union {                 /* 64 bytes, then its windows */
	_Atomic uint32_t used;     /* 1: valid */
	uint32_t gpu;              /* index of box_header.gpu */
	_Atomic uint32_t windows;  /* in use */
	_Atomic uint32_t window_s; /* BOX_UNION_S, doubled whenever the windows are full */
	/* Of all windows, also those of before the clock was set back. */
	_Atomic uint64_t operations, lost, busy_ns;
	_Atomic int64_t ahead_ns; /* the latest */
	uint64_t reserved[2];
	struct box_union_window window[BOX_UNION_WINDOWS];
};

/* What NCCL says of operations besides their kind (hot/labels.h). */
enum box_label_kind {
	BOX_LABEL_USER_TAG, /* v7: the application's tag of its call */
	BOX_LABEL_KERNEL,   /* v7: the kernel of a symmetric collective */
	BOX_LABEL_ROOT,     /* of a Broadcast or Reduce: by communicator and function */
	BOX_LABEL_KINDS,
};
#define BOX_LABEL_ALL_COMMS UINT32_MAX
#define BOX_LABEL_OTHERS UINT64_MAX

struct box_label {             /* 128 bytes */
	_Atomic uint32_t used; /* 1: the members of this half are valid */
	uint8_t kind, func;    /* enum box_label_kind; enum box_func, of a root only */
	uint8_t reserved0[2];
	_Atomic uint32_t comm; /* of a root: index of struct box_comm; else BOX_LABEL_ALL_COMMS */
	uint32_t reserved1;
	uint64_t value;            /* tag or root; BOX_LABEL_OTHERS: all others of the kind */
	char text[BOX_LABEL_TEXT]; /* of a kernel */
	/* Operations, their bytes, and the time of those that have one. Parts of a group have none:
	 * their times overlap. */
	_Atomic uint64_t ops, bytes, timed_ops, busy_ns;
	/* Calls; to be read only if there are no `ops`: then NCCL tells no more. */
	_Atomic uint64_t called_ops, called_bytes;
	/* The beat thread's rounds before the first and the last one. */
	_Atomic uint64_t first_tick, last_tick;
};

#define BOX_ASSERT(name, bytes)                                                                    \
	_Static_assert(sizeof(struct name) == (bytes), #name " is a wire format")
BOX_ASSERT(box_gpu, 128);
BOX_ASSERT(box_comm, 256);
BOX_ASSERT(box_skew, 576);
BOX_ASSERT(box_key, 128);
BOX_ASSERT(box_op, 128);
BOX_ASSERT(box_peer, 64);
BOX_ASSERT(box_window, 64);
BOX_ASSERT(box_line, 64 + 64 * BOX_LINE_WINDOWS);
BOX_ASSERT(box_net_queue, 24);
BOX_ASSERT(box_net, 192);
BOX_ASSERT(box_sample_kind, 128);
BOX_ASSERT(box_sample, 32);
BOX_ASSERT(box_label, 128);
_Static_assert(BOX_LABEL_USER_TAGS + BOX_LABEL_KERNELS + BOX_LABEL_ROOTS == BOX_LABELS,
               "each kind has its places");
BOX_ASSERT(box_union_window, 32);
BOX_ASSERT(box_union, 64 + 32 * BOX_UNION_WINDOWS);
_Static_assert(sizeof(struct box_header) <= 4096, "box_header fits its page");

/* The box of this process: the mapped file, or plain memory of which box_snapshot
 * writes a copy (where the directory is not on tmpfs). */
struct box {
	struct box_header *header;
	struct box_comm *comms;
	struct box_key *keys;
	struct hist *hists;
	struct box_op *ops;
	struct box_peer *peers;
	struct box_line *lines;
	struct box_net *nets;
	struct box_sample *samples;
	struct box_sample_kind *sample_kinds;
	struct box_union *unions;
	struct box_skew *skews; /* of live communicators */
	struct box_label *labels;
	uint64_t bytes;
	struct descriptor file; /* holds the record lock that says "alive" */
	bool mapped;
	char stem[96]; /* name of the file in the directory, without ".box" */
};

/* Makes <dir_fd>/nccl_inspector_<step>_<pid>[.<n>].box, locks it and maps it; with dir_fd -1, or if
 * the file cannot be had, plain memory. Returns 0, or -errno if there is not even memory;
 * *file_error gets 0 or -errno of the file. Everything is prefaulted: no later page fault, no later
 * ENOSPC. Under the inspector's lock. */
int box_open(struct box *box, int dir_fd, const char *step, int *file_error);

/* Returns "<step>_<pid>[.<n>]": the process in names and labels. */
static inline const char *box_process(const struct box *box)
{
	return box->stem + sizeof(BOX_STEM) - 1;
}

/* Writes a copy of unmapped tables to the file; does nothing for a mapped box. Returns 0 or -errno.
 * May block: by the beat, or where there is no thread. */
int box_snapshot(struct box *box);

/* Stores the state, also in the file of an unmapped box. */
void box_set_state(struct box *box, enum box_state state);

/* For a forked child: gives back the file and its memory, which the child would keep for as long as
 * it lives. The parent's lock stays. The tables are empty memory then, which takes no room until it
 * is written to. Safe right after fork(). */
void box_leave(struct box *box);

/* Whether a function is Send, Recv or a group of both. */
static inline bool box_func_is_p2p(unsigned func)
{
	return func == BOX_FUNC_SEND || func == BOX_FUNC_RECV || func == BOX_FUNC_SENDRECV;
}

#endif
