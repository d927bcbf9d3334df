/* SPDX-License-Identifier: Apache-2.0 */
/* player.h - plays NCCL against a profiler library, call by call, for programs of one file.
 *
 *	struct player player;
 *	struct player_comm comm = { .name = "tp", .id = 7, .n_nodes = 1, .n_ranks = 8 };
 *	struct player_op op = player_coll(PLAYER_ALLREDUCE, 1 << 20);
 *
 *	if (!player_open(&player, "libnccl-profiler-inspector.so", 5))
 *		return 1;
 *	player_init(&player, &comm);
 *	player_enqueue(&comm, &op);              the application's thread, as in ncclAllReduce()
 *	player_kernel(&comm, &op, 1000, 26000);  NCCL's other thread; ns of the GPU's clock
 *	player_finalize(&comm);
 *	player_close(&player);
 *
 * Three floors, to be mixed freely: player_*() tell whole operations as NCCL does under the current
 * mask; player_group_*() tell one operation or a group in five steps, with room in between;
 * play_*() are single calls without any rule. An event that the version does not have is not told,
 * and has the handle NULL. A NULL handle gets no further call. Nothing here locks: calls that NCCL
 * makes from two threads may be made from two threads.
 */
#ifndef PLAYER_H
#define PLAYER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "profiler_abi.h"
#include "profiler_abi_old.h"

#define PLAYER_VERSIONS 7
#define PLAYER_CHANNELS 64u

/* What a handle holds before a start. A plugin that does not write it gets this back. */
#define PLAYER_LEFT_OVER ((void *)(uintptr_t)0x5ca1ab1e0ddba115)

/* NCCL's order, which v1 tells as a number. */
enum player_func {
	PLAYER_BROADCAST,
	PLAYER_REDUCE,
	PLAYER_ALLGATHER,
	PLAYER_REDUCESCATTER,
	PLAYER_ALLREDUCE,
	PLAYER_SENDRECV,
	PLAYER_SEND,
	PLAYER_RECV,
	PLAYER_FUNCS,
};

struct player_start;

struct player {
	int version; /* 1 to 7 */
	int mask;    /* the process's activation mask; the plugin may write it at any time */
	void *library;
	union {
		const struct prof_table_v1 *v1;
		const struct prof_table_v2 *v2;
		const struct prof_table_v3 *v3;
		const struct prof_table_v4 *v4;
		const struct prof_table_v5 *v5; /* and v6; name, stop and finalize are as in all */
		const struct prof_table_v7 *v7;
	};
	void (*start)(const struct player_start *start, void **handle);
	unsigned unwritten; /* starts that did not write the handle */
};

struct player_comm {
	/* The program's: */
	const char *name; /* may be NULL */
	uint64_t id;
	int n_nodes, n_ranks, rank;
	/* Ours: */
	struct player *player;
	void *context;
	int result; /* of init */
	uint64_t next_seq[PLAYER_FUNCS];
};

/* One collective, Send or Recv. What the plugin is told of it is the program's to change. */
struct player_op {
	enum player_func func;
	const char *func_word; /* from v2 on; NULL is told as NULL, as are the words below */
	const char *datatype;  /* v1 tells numbers: Unknown is uint8 there */
	const char *algo, *proto;
	size_t count;             /* elements of datatype in the Coll or P2p event */
	const char *api_datatype; /* of the caller, in CollApi and P2pApi */
	size_t api_count;
	int root;
	int peer;
	uint8_t channels;      /* announced; also how many player_kernel() plays */
	uint8_t first_channel; /* the i-th is first_channel + i, modulo 64 */
	bool self_numbered;    /* seq is the program's, not the next of the communicator */
	uint64_t seq;
	uint64_t user_tag;          /* v7 */
	const char *kernel_variant; /* v7 */
	bool symmetric;             /* v7 */
	uint32_t sync_ns, drain_ns; /* v7: length of the phases initial_sync and final_sync */
	uint64_t born_ns;           /* the program's own: told to nobody */
	/* Ours: */
	int mask;                      /* under which it was called */
	void *api;                     /* handle of CollApi or P2pApi; kept for replays */
	void *handle;                  /* of Coll or P2p */
	void *kernel[PLAYER_CHANNELS]; /* of KernelCh, by channel; never cleared, as in NCCL */
	void *phase[PLAYER_CHANNELS];
	struct player_op *next; /* in its group */
};

/* `bytes` is count x element size as NCCL reports it: of AllGather and ReduceScatter the share of a
 * rank. 8 channels from 0, RING, SIMPLE, ncclFloat32 (AllGather and Broadcast: ncclInt8). */
struct player_op player_coll(enum player_func func, size_t bytes);

/* PLAYER_SEND or PLAYER_RECV of ncclFloat32 on 2 channels. */
struct player_op player_p2p(enum player_func func, int peer, size_t bytes);

/* --- the library ------------------------------------------------------------------------- */

/* Loads `path` and takes the table of `version`, or with 0 the highest that it has, as NCCL does.
 * Returns false, with a line on stderr, when it cannot be loaded or has no such table. */
bool player_open(struct player *player, const char *path, int version);

/* dlclose, as after the last communicator. */
void player_close(struct player *player);

/* Where the plugin's log lines go, formatted; NULL, the default: nowhere. Any thread may call it.
 */
typedef void (*player_log)(int level, unsigned long subsystem, const char *line);
void player_on_log(player_log log);

/* Fills context and result. Before: context is PLAYER_LEFT_OVER. */
void player_init(struct player *player, struct player_comm *comm);

/* From v5 (2.28) on a NULL context is not finalized. */
void player_finalize(struct player_comm *comm);

/* --- whole operations -------------------------------------------------------------------- */

/* All that the application's thread tells of a lone operation. */
void player_enqueue(struct player_comm *comm, struct player_op *op);

/* The same for n of them in one ncclGroupStart() ... ncclGroupEnd(). */
void player_enqueue_group(struct player_comm *comm, struct player_op *ops, unsigned n);

/* All kernel events of an operation: every channel starts at start_ns, then each stops at stop_ns.
 * With phases (v7) each channel has initial_sync for sync_ns, compute, and final_sync for drain_ns:
 * the first ends as the channel starts, the last begins as it stops. */
void player_kernel(struct player_comm *comm, struct player_op *op, uint64_t start_ns,
                   uint64_t stop_ns);

/* The i-th channel alone, i below op->channels or not. */
void player_kernel_start(struct player_comm *comm, struct player_op *op, unsigned i,
                         uint64_t gpu_ns);
void player_kernel_stop(struct player_comm *comm, struct player_op *op, unsigned i,
                        uint64_t gpu_ns);

/* A collective of the copy engine (v6): Api events, CeColl with a CeSync and a CeBatch in it. */
void player_enqueue_ce(struct player_comm *comm, struct player_op *op);

/* A collective of which only the Api events are told: Broadcast from 2.29 on. */
void player_enqueue_api_only(struct player_comm *comm, struct player_op *op);

/* --- a group in steps, in this order ----------------------------------------------------- */

struct player_group {
	struct player_comm *comm;
	int mask;
	void *api, *handle; /* of GroupApi and Group */
	bool captured;      /* into a graph */
	struct player_op *first, *last;
};

/* GroupApi start and its first state. `depth`: 1 for a lone call, 2 for the user's group. */
void player_group_begin(struct player_group *group, struct player_comm *comm, int depth,
                        bool captured);

/* CollApi or P2pApi, start and stop; the operation joins the group and gets its number. */
void player_group_call(struct player_group *group, struct player_op *op);

/* GroupApi's second state, KernelLaunch start and stop. */
void player_group_launch(struct player_group *group);

/* Group start, then Coll or P2p start of each. */
void player_group_tasks(struct player_group *group);

/* Their stops, Group stop, GroupApi stop. After this player_group_tasks() and player_group_end()
 * again are a replay of a graph: the tasks' parents are the handles of the capture. */
void player_group_end(struct player_group *group);

/* GroupApi stop alone: the end of a capture, in which no task is told. */
void player_group_captured(struct player_group *group);

/* --- single calls ------------------------------------------------------------------------ */

void *play_group_api(struct player_comm *comm, int depth, bool captured);
void *play_coll_api(struct player_comm *comm, void *group_api, const struct player_op *op,
                    bool captured);
void *play_p2p_api(struct player_comm *comm, void *group_api, const struct player_op *op,
                   bool captured);
void *play_kernel_launch(struct player_comm *comm, void *group_api);
void *play_group(struct player_comm *comm);

/* `api`: the parent from v5 on; before, that is the group. */
void *play_coll(struct player_comm *comm, void *api, void *group, const struct player_op *op);
void *play_p2p(struct player_comm *comm, void *api, void *group, const struct player_op *op);

void *play_kernel_ch(struct player_comm *comm, void *task, unsigned channel, uint64_t gpu_ns);
/* State 22 with the clock (v4+), then stop. */
void play_kernel_ch_stop(struct player_comm *comm, void *handle, uint64_t gpu_ns);
void *play_kernel_phase(struct player_comm *comm, void *kernel_ch, unsigned channel, unsigned phase,
                        uint64_t gpu_ns);
/* State 31 with the clock, then stop. */
void play_kernel_phase_stop(struct player_comm *comm, void *handle, uint64_t gpu_ns);

void *play_ce_coll(struct player_comm *comm, void *coll_api, const struct player_op *op);
void *play_ce_sync(struct player_comm *comm, void *ce_coll, bool is_complete);
void *play_ce_batch(struct player_comm *comm, void *ce_coll, int n_ops, size_t bytes);

void *play_proxy_op(struct player_comm *comm, void *task, const struct prof_proxy_op *op);
void *play_proxy_step(struct player_comm *comm, void *proxy_op, int step);
void *play_net_plugin(struct player_comm *comm, void *step, int64_t id, void *data);
void *play_proxy_ctrl(struct player_comm *comm);

/* A head with this type and parent, and nothing behind it: unknown types, wrong parents. */
void *play_type(struct player_comm *comm, uint64_t type, void *parent);

void play_stop(struct player_comm *comm, void *handle);
/* `value` goes to where the state has it: a clock, bytes of a step, a count. */
void play_state(struct player_comm *comm, void *handle, int state, uint64_t value);
/* With NULL arguments, as NCCL may. */
void play_state_bare(struct player_comm *comm, void *handle, int state);

#endif
