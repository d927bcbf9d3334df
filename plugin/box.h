/* SPDX-License-Identifier: Apache-2.0 */
/* box.h - what a process knows of its communication, in one mapped file.
 *
 * The hot path adds to these tables with relaxed atomics, so whatever kills the
 * process, everything up to its last event is in the file. This header is a wire
 * format: python/nccl_inspector/box.py reads it, and packaging/doc/internals.md
 * describes it. All numbers are little-endian. A reader uses pread, never mmap.
 *
 * Words only grow, except where a comment says otherwise. An operation is added to
 * a struct box_key between one more in `begun` and one more in `ops`: a reader that
 * reads ops first and begun last, and finds them equal, has the key whole.
 */
#ifndef NCCL_INSPECTOR_BOX_H
#define NCCL_INSPECTOR_BOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "hist.h"

#define BOX_MAGIC "NCCLIBOX"
#define BOX_VERSION 2u
#define BOX_STEM "nccl_inspector_"

#define BOX_LIVE_COMMS 64u    /* communicators counted in full at one time */
#define BOX_FOLDED_COMMS 32u  /* destroyed ones, folded by (name, nranks, nnodes, rank) */
#define BOX_COMMS (BOX_LIVE_COMMS + BOX_FOLDED_COMMS)
#define BOX_KEYS 256u
#define BOX_OPS 4096u /* operations in flight; a power of two */
#define BOX_GPUS 16u

/* Why an event could not be measured: index of box_header.dropped, and the label
 * `reason` of nccl_inspector_events_dropped_total. */
enum box_drop {
	BOX_DROP_NO_SLOT,     /* more than BOX_OPS operations in flight */
	BOX_DROP_NO_COMM,     /* operation of a communicator beyond BOX_LIVE_COMMS */
	BOX_DROP_NO_KEY,      /* more than BOX_KEYS kinds of operation */
	BOX_DROP_EXPIRED,     /* operation never completed, and its slot was needed */
	BOX_DROP_IMPLAUSIBLE, /* clocks that cannot be true */
	BOX_DROP_STALE,       /* event for an operation that is over */
	BOX_DROP_UNTIMED,     /* operation for which NCCL gives no time (to itself, of no bytes, no kernel) */
	BOX_DROPS,
	BOX_DROP_REASONS = 16,
};

/* Internal numbers of NCCL's words; 0 is always "not known". */
enum box_func {
	BOX_FUNC_UNKNOWN, BOX_FUNC_ALLREDUCE, BOX_FUNC_ALLGATHER, BOX_FUNC_REDUCESCATTER,
	BOX_FUNC_BROADCAST, BOX_FUNC_REDUCE, BOX_FUNC_ALLTOALL, BOX_FUNC_GATHER, BOX_FUNC_SCATTER,
	BOX_FUNC_SEND, BOX_FUNC_RECV, BOX_FUNC_SENDRECV,
	BOX_FUNCS,
};
enum box_algo {
	BOX_ALGO_UNKNOWN, BOX_ALGO_TREE, BOX_ALGO_RING, BOX_ALGO_COLLNET_DIRECT, BOX_ALGO_COLLNET_CHAIN,
	BOX_ALGO_NVLS, BOX_ALGO_NVLS_TREE, BOX_ALGO_PAT,
	BOX_ALGOS,
};
enum box_proto { BOX_PROTO_UNKNOWN, BOX_PROTO_LL, BOX_PROTO_LL128, BOX_PROTO_SIMPLE, BOX_PROTOS };

struct box_gpu {            /* 128 bytes; unused entries have an empty uuid */
	char uuid[48];      /* "GPU-xxxxxxxx-...", empty when the driver did not tell */
	char pci_bus_id[32];
	int32_t minor;      /* of /dev/nvidiaN, -1 when not known */
	uint32_t used;
	char label[40];     /* value of the label `gpu` */
};

/* Converts ticks: ns = ticks * ns_per_tick_q32 / 2^32. For a time of day count from beat_tick and
 * beat_real_ns, which are near, rather than from here. */
struct box_clock {
	uint64_t tick0;
	uint64_t real0_ns;   /* CLOCK_REALTIME at tick0 */
	uint64_t ns_per_tick_q32;
};

enum box_state {
	BOX_LIVE = 1,
	BOX_FINALIZED = 2, /* the last communicator was destroyed */
	BOX_EXITED = 3,    /* the process ended in order, communicators and all */
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
	uint32_t pid, uid, step_id, procid, localid;  /* UINT32_MAX: not known */
	uint32_t api_version, nccl_version;           /* NCCL: 23007 is 2.30.7, 0 not known */
	uint32_t array_job_id, array_task_id;         /* as in 810_3; UINT32_MAX: no array */
	uint32_t reserved0;
	uint64_t job_id; /* 0: not known */
	char plugin_version[16];
	char node[64];     /* SLURMD_NODENAME, else the host name */
	struct box_clock clock;
	struct box_gpu gpu[BOX_GPUS];
	/* From here on words change while the process runs. */
	_Atomic uint32_t state;      /* enum box_state; goes back to live when NCCL is used again */
	_Atomic uint32_t layout_seq; /* odd while a communicator is being recorded or folded */
	_Atomic uint64_t beat_tick;  /* the writer thread's last round; ages count from here */
	_Atomic uint64_t beat_real_ns;
	_Atomic uint64_t dropped[BOX_DROP_REASONS];
	_Atomic uint64_t series_dropped;
	_Atomic uint64_t self_ns; /* CPU time of the plugin's own threads */
	_Atomic uint64_t comms_created, comms_destroyed;
};

enum box_comm_state { BOX_COMM_FREE, BOX_COMM_LIVE, BOX_COMM_DESTROYED, BOX_COMM_FOLDED };

struct box_comm { /* 256 bytes */
	uint64_t id; /* NCCL's commId / commHash; of a folded record: of the first one folded */
	_Atomic uint32_t state;
	_Atomic uint32_t generation;
	int32_t nranks, nnodes, rank;
	uint32_t gpu;             /* index of box_header.gpu; UINT32_MAX: not known */
	uint64_t created_real_ns;
	uint64_t destroyed_real_ns; /* 0 while live */
	/* Operations of all functions. An operation's index is its place in the order of enqueueing, from 1. */
	_Atomic uint64_t enqueued, started, completed;
	_Atomic uint64_t last_sequence;      /* highest index that completed */
	_Atomic uint64_t last_progress_tick; /* of the latest completion; 0 before the first */
	uint64_t folded;                     /* communicators in this record */
	char name[64];                       /* printable ASCII */
	uint64_t reserved[12];
};

struct box_key { /* 128 bytes: one kind of operation of one communicator */
	_Atomic uint64_t ops; /* stored last */
	_Atomic uint64_t bytes;
	_Atomic uint64_t busy_ns;
	_Atomic uint64_t min_ns, max_ns;         /* min_ns 0 before the first; min only shrinks */
	_Atomic int64_t log2_rate_q20;           /* sum over operations of log2(bytes / ns), in 2^-20 */
	_Atomic uint64_t first_index, last_index; /* of the operations in here (struct box_comm) */
	_Atomic uint32_t used;                   /* 1: the words below are valid */
	uint32_t comm;                           /* index of struct box_comm */
	uint8_t func, size_class, algo, proto;   /* size_class: floor(log2(bytes)); 0 for 0 and 1 */
	uint32_t reserved0;
	_Atomic uint64_t begun; /* stored first: equal to ops while nobody is adding */
	uint64_t reserved[5];
};

/* The upper 24 bits of box_op.flags are the generation's lower ones: who sets a flag says of which use. */
enum box_op_flag { BOX_OP_USED = 1, BOX_OP_APP_DONE = 2, BOX_OP_GPU_DONE = 4, BOX_OP_CLAIMED = 8 };
#define BOX_OP_FLAG_BITS 8u

struct box_op { /* 128 bytes: one operation in flight */
	_Atomic uint32_t generation; /* odd while in use; counts up by two a use */
	_Atomic uint32_t flags;      /* enum box_op_flag, generation << BOX_OP_FLAG_BITS */
	_Atomic uint32_t comm;       /* index of struct box_comm */
	_Atomic uint32_t comm_generation;
	_Atomic uint32_t key;        /* index of struct box_key, UINT32_MAX: none */
	_Atomic uint32_t kind;       /* func | algo << 8 | proto << 16 | channels << 24 */
	_Atomic uint64_t index;      /* struct box_comm */
	_Atomic uint64_t sequence;   /* NCCL's seqNumber: per communicator and function; 0 for Send and Recv */
	_Atomic uint64_t bytes;
	_Atomic uint64_t enqueue_tick;
	_Atomic uint64_t event_tick; /* when the writer thread last saw the channels change */
	_Atomic uint64_t gpu_start_ns, gpu_stop_ns; /* GPU clock; 0: not yet */
	_Atomic uint64_t started_channels, stopped_channels; /* a bit each */
	_Atomic int32_t peer;         /* -1: a collective */
	_Atomic uint32_t next_free;   /* free list: index + 1 */
	uint64_t reserved[3];
};

#define BOX_ASSERT(name, bytes) _Static_assert(sizeof(struct name) == (bytes), #name " is a wire format")
BOX_ASSERT(box_gpu, 128);
BOX_ASSERT(box_comm, 256);
BOX_ASSERT(box_key, 128);
BOX_ASSERT(box_op, 128);
_Static_assert(sizeof(struct box_header) <= 4096, "box_header fits its page");

/* The box of this process: the mapped file, or plain memory of which box_snapshot
 * writes a copy (where the directory is not on tmpfs). */
struct box {
	struct box_header *header;
	struct box_comm *comms;
	struct box_key *keys;
	struct hist *hists;
	struct box_op *ops;
	uint64_t bytes;
	int fd; /* holds the record lock that says "alive"; -1 without a file */
	bool mapped;
	char stem[96]; /* name of the file in the directory, without ".box" */
};

/* Makes <dir_fd>/nccl_inspector_<step>_<pid>[.<n>].box, locks it and maps it; with dir_fd -1 or when the
 * file cannot be had, plain memory. Returns 0, or -errno when there is not even memory; *file_error gets 0 or
 * -errno of the file. Everything is prefaulted: no later page fault, no later ENOSPC. */
int box_open(struct box *box, int dir_fd, const char *step, int *file_error);

/* "<step>_<pid>[.<n>]": the process in names and labels. */
static inline const char *box_process(const struct box *box)
{
	return box->stem + sizeof(BOX_STEM) - 1;
}

/* Writes a copy of unmapped tables to the file. Returns 0 or -errno. Nothing to do for a mapped box. */
int box_snapshot(struct box *box);

/* Stores the state, in the file too when it is not mapped. */
void box_set_state(struct box *box, enum box_state state);

/* The same file as a descriptor above 2 (and -1 as it is): applications that close stdout write to 1. */
int box_move_fd(int fd);

/* Word for a number, as NCCL writes it ("AllReduce", "RING", "SIMPLE"; "Unknown"). */
const char *box_func_name(unsigned func);
const char *box_algo_name(unsigned algo);
const char *box_proto_name(unsigned proto);

static inline bool box_func_is_p2p(unsigned func)
{
	return func == BOX_FUNC_SEND || func == BOX_FUNC_RECV || func == BOX_FUNC_SENDRECV;
}

#endif
