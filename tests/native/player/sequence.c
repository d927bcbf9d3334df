/* SPDX-License-Identifier: Apache-2.0 */
/* sequence.c - which calls NCCL makes for an operation, in which order, under which mask. */
#include "player.h"

/* Bits that make NCCL start an event: its own and those of everything below it. */
#define BELOW_TASK                                                                                 \
	(PROF_PROXY_OP | PROF_PROXY_STEP | PROF_KERNEL_CH | PROF_NET_PLUGIN | PROF_KERNEL_PHASE)
#define BELOW_CE (PROF_CE_SYNC | PROF_CE_BATCH)
#define FOR_COLL (PROF_COLL | BELOW_TASK)
#define FOR_P2P (PROF_P2P | BELOW_TASK)
#define FOR_GROUP (PROF_GROUP | FOR_COLL | FOR_P2P)
#define FOR_CE (PROF_CE_COLL | BELOW_CE)
#define FOR_COLL_API (PROF_COLL_API | FOR_COLL | FOR_CE)
#define FOR_P2P_API (PROF_P2P_API | FOR_P2P)
#define FOR_GROUP_API (PROF_GROUP_API | PROF_KERNEL_LAUNCH | FOR_GROUP | FOR_COLL_API | FOR_P2P_API)

#define FLOAT_BYTES 4u

static const char *const func_words[PLAYER_FUNCS] = {
	"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
	"AllReduce", "SendRecv", "Send",      "Recv",
};

static bool is_p2p(const struct player_op *op)
{
	return op->func == PLAYER_SEND || op->func == PLAYER_RECV;
}

struct player_op player_coll(enum player_func func, size_t bytes)
{
	bool as_bytes = func == PLAYER_ALLGATHER || func == PLAYER_BROADCAST;

	return (struct player_op){
		.func = func,
		.func_word = func_words[func],
		.datatype = as_bytes ? "ncclInt8" : "ncclFloat32",
		.algo = "RING",
		.proto = "SIMPLE",
		.count = as_bytes ? bytes : bytes / FLOAT_BYTES,
		.api_datatype = "ncclFloat32",
		.api_count = bytes / FLOAT_BYTES,
		.peer = -1,
		.channels = 8,
		.kernel_variant = "Generic",
	};
}

struct player_op player_p2p(enum player_func func, int peer, size_t bytes)
{
	struct player_op op = player_coll(func, bytes);

	op.peer = peer;
	op.channels = 2;
	return op;
}

void player_group_begin(struct player_group *group, struct player_comm *comm, int depth,
                        bool captured)
{
	int version = comm->player->version;

	*group = (struct player_group){ .comm = comm, .captured = captured };
	group->mask = __atomic_load_n(&comm->player->mask, __ATOMIC_RELAXED);
	if (version < 7)
		group->mask &= ~(int)PROF_KERNEL_PHASE;
	else if (group->mask & PROF_KERNEL_PHASE)
		group->mask |= PROF_KERNEL_CH;
	if (version < 6)
		group->mask &= ~(int)FOR_CE;
	if (group->mask & FOR_GROUP_API)
		group->api = play_group_api(comm, depth, captured);
	play_state(comm, group->api, PROF_STATE_GROUP_START_END, 0);
}

void player_group_call(struct player_group *group, struct player_op *op)
{
	bool p2p = is_p2p(op);

	op->mask = group->mask;
	op->api = op->handle = NULL;
	op->next = NULL;
	if (!op->self_numbered)
		op->seq = group->comm->next_seq[op->func]++;
	if (group->first)
		group->last->next = op;
	else
		group->first = op;
	group->last = op;
	if (p2p && group->mask & FOR_P2P_API)
		op->api = play_p2p_api(group->comm, group->api, op, group->captured);
	else if (!p2p && group->mask & FOR_COLL_API)
		op->api = play_coll_api(group->comm, group->api, op, group->captured);
	play_stop(group->comm, op->api);
}

void player_group_launch(struct player_group *group)
{
	void *launch = NULL;

	play_state(group->comm, group->api, PROF_STATE_GROUP_END_START, 0);
	if (group->mask & PROF_KERNEL_LAUNCH)
		launch = play_kernel_launch(group->comm, group->api);
	play_stop(group->comm, launch);
}

void player_group_tasks(struct player_group *group)
{
	if (group->mask & FOR_GROUP)
		group->handle = play_group(group->comm);
	/* To 2.27 a task without a group is not told; its channels are. */
	if (group->comm->player->version < 5 && !group->handle)
		return;
	for (struct player_op *op = group->first; op; op = op->next) {
		if (is_p2p(op) && group->mask & FOR_P2P)
			op->handle = play_p2p(group->comm, op->api, group->handle, op);
		else if (!is_p2p(op) && group->mask & FOR_COLL)
			op->handle = play_coll(group->comm, op->api, group->handle, op);
	}
}

void player_group_end(struct player_group *group)
{
	for (struct player_op *op = group->first; op; op = op->next)
		play_stop(group->comm, op->handle);
	play_stop(group->comm, group->handle);
	group->handle = NULL;
	player_group_captured(group);
}

void player_group_captured(struct player_group *group)
{
	play_stop(group->comm, group->api);
	group->api = NULL;
}

void player_enqueue(struct player_comm *comm, struct player_op *op)
{
	struct player_group group;

	player_group_begin(&group, comm, 1, false);
	player_group_call(&group, op);
	player_group_launch(&group);
	player_group_tasks(&group);
	player_group_end(&group);
}

void player_enqueue_group(struct player_comm *comm, struct player_op *ops, unsigned n)
{
	struct player_group group;

	player_group_begin(&group, comm, 2, false);
	for (unsigned i = 0; i < n; i++)
		player_group_call(&group, &ops[i]);
	player_group_launch(&group);
	player_group_tasks(&group);
	player_group_end(&group);
}

void player_enqueue_api_only(struct player_comm *comm, struct player_op *op)
{
	struct player_group group;

	player_group_begin(&group, comm, 1, false);
	player_group_call(&group, op);
	player_group_launch(&group);
	player_group_captured(&group);
}

void player_enqueue_ce(struct player_comm *comm, struct player_op *op)
{
	struct player_group group;
	void *ce = NULL, *sync = NULL, *batch = NULL;

	player_group_begin(&group, comm, 1, false);
	player_group_call(&group, op);
	play_state(comm, group.api, PROF_STATE_GROUP_END_START, 0);
	if (group.mask & FOR_CE)
		ce = play_ce_coll(comm, op->api, op);
	if (group.mask & PROF_CE_SYNC)
		sync = play_ce_sync(comm, ce, false);
	play_stop(comm, sync);
	if (group.mask & PROF_CE_BATCH)
		batch = play_ce_batch(comm, ce, comm->n_ranks, op->api_count * FLOAT_BYTES);
	play_stop(comm, batch);
	play_stop(comm, ce);
	player_group_captured(&group);
}

/* The next phase begins where this one ends. */
static void next_phase(struct player_comm *comm, struct player_op *op, unsigned channel,
                       unsigned phase, uint64_t gpu_ns)
{
	play_kernel_phase_stop(comm, op->phase[channel], gpu_ns);
	op->phase[channel] = play_kernel_phase(comm, op->kernel[channel], channel, phase, gpu_ns);
}

void player_kernel_start(struct player_comm *comm, struct player_op *op, unsigned i,
                         uint64_t gpu_ns)
{
	unsigned channel = (op->first_channel + i) % PLAYER_CHANNELS;

	if (!(op->mask & (PROF_KERNEL_CH | PROF_KERNEL_PHASE)))
		return;
	op->kernel[channel] = play_kernel_ch(comm, op->handle, channel, gpu_ns);
	if (!(op->mask & PROF_KERNEL_PHASE))
		return;
	op->phase[channel] = play_kernel_phase(comm, op->kernel[channel], channel, 0, gpu_ns);
	next_phase(comm, op, channel, 1, gpu_ns + op->sync_ns);
}

void player_kernel_stop(struct player_comm *comm, struct player_op *op, unsigned i, uint64_t gpu_ns)
{
	unsigned channel = (op->first_channel + i) % PLAYER_CHANNELS;

	if (!(op->mask & (PROF_KERNEL_CH | PROF_KERNEL_PHASE)))
		return;
	if (op->mask & PROF_KERNEL_PHASE) {
		next_phase(comm, op, channel, 2, gpu_ns - op->drain_ns);
		play_kernel_phase_stop(comm, op->phase[channel], gpu_ns);
	}
	play_kernel_ch_stop(comm, op->kernel[channel], gpu_ns);
}

void player_kernel(struct player_comm *comm, struct player_op *op, uint64_t start_ns,
                   uint64_t stop_ns)
{
	for (unsigned i = 0; i < op->channels; i++)
		player_kernel_start(comm, op, i, start_ns);
	for (unsigned i = 0; i < op->channels; i++)
		player_kernel_stop(comm, op, i, stop_ns);
}
