/* SPDX-License-Identifier: Apache-2.0 */
/* DESIGN: the order is NCCL's (2.28 on; 2.27 has no Api events): GroupApi, the call inside it,
 * the launch, and only then Group and the tasks. So the kernel can run, and end, before the
 * profiler hears that the operation exists. */
#include "api.h"

#include <stdlib.h>

#include "fail.h"
#include "gpu.h"
#include "gpuclock.h"
#include "profiler.h"
#include "progress.h"

#define P2P_CHANNELS 32u /* of the communicator, a power of two */

/* Now and then the application's thread loses the processor in the middle of ncclGroupEnd(), and
 * the channels of a task start before its stop is told. */
#define LATE_EVERY 4
#define LATE_MS 1

static const char *const func_names[FUNCS] = { "AllReduce", "AllGather", "ReduceScatter", "Send",
                                               "Recv" };

static char buffers[2]; /* their addresses are shown to the profiler */

/* What one outermost group knows. */
struct group {
	struct comm *comm;
	int mask;
	bool api; /* the Api events exist */
	void *api_handle;
};

const char *func_name(enum func func)
{
	return func_names[func];
}

/* Collectives: a range that need not begin at 0. Send and Recv: from a base that NCCL makes of
 * the bit-reversed distance to the peer, which is 1 here, modulo their channels. */
static uint8_t channel_id(const struct op *op, int i)
{
	if (func_is_p2p(op->func))
		return (uint8_t)((P2P_CHANNELS / 2 + (unsigned int)i) % P2P_CHANNELS);
	return (uint8_t)(2 * (int)op->comm->kind + i);
}

static struct op *new_op(struct comm *comm, enum func func, size_t bytes, const struct options *opt)
{
	struct op *op = calloc(1, sizeof(*op));
	size_t shares = func == FUNC_ALLGATHER || func == FUNC_REDUCESCATTER;
	size_t count = bytes / sizeof(float) / (shares ? (size_t)comm->n_ranks : 1);

	if (!op)
		die("out of memory");
	op->comm = comm;
	op->func = func;
	op->seq = comm->seq[func]++;
	op->count = count ? count : 1;
	op->peer = func == FUNC_SEND ? comm->next : func == FUNC_RECV ? comm->prev : -1;
	op->send = &buffers[0];
	op->recv = &buffers[1];
	op->n_channels = (int)opt->channels;
	for (int i = 0; i < op->n_channels; i++)
		op->channels[i].id = channel_id(op, i);
	return op;
}

/* `depth` is 1 for the group that NCCL makes around a lone call, else the user's depth + 1. */
static struct group group_begin(struct comm *comm, int depth)
{
	struct group group = { .comm = comm, .mask = prof_mask(), .api = prof_version() >= 5 };
	struct event event = { .type = PROF_GROUP_API, .depth = depth };

	if (prof_version() >= 7 && group.mask & PROF_KERNEL_PHASE)
		group.mask |= PROF_KERNEL_CH;
	if (group.api && group.mask & BITS_GROUP_API)
		group.api_handle = prof_start(comm, &event);
	prof_record(group.api_handle, PROF_STATE_GROUP_START_END, 0);
	return group;
}

/* Inside ncclAllReduce() and so on. The task's parent is this call, or in 2.27 the group. */
static void *api_call(const struct group *group, struct op *op)
{
	bool p2p = func_is_p2p(op->func);
	struct event event = { .type = p2p ? PROF_P2P_API : PROF_COLL_API,
	                       .parent = group->api_handle,
	                       .op = op };
	void *handle = NULL;

	op->mask = group->mask;
	if (group->api && group->mask & (p2p ? BITS_P2P_API : BITS_COLL_API))
		handle = prof_start(group->comm, &event);
	prof_stop(handle);
	return handle;
}

static void launch(const struct group *group, struct kernel *kernel)
{
	struct event event = { .type = PROF_KERNEL_LAUNCH, .parent = group->api_handle };
	void *handle = NULL;

	if (group->api && group->mask & PROF_KERNEL_LAUNCH)
		handle = prof_start(group->comm, &event);
	gpu_launch(kernel);
	prof_stop(handle);
}

static void start_task(const struct group *group, struct op *op, void *parent, void *group_handle)
{
	bool p2p = func_is_p2p(op->func);
	struct event event = { .type = p2p ? PROF_P2P : PROF_COLL,
	                       .parent = group->api ? parent : group_handle,
	                       .group = group_handle,
	                       .op = op };

	/* To 2.27 a task without a group is not told; its kernel's channels are. */
	if (!group->api && !group_handle)
		return;
	if (group->mask & (p2p ? BITS_P2P : BITS_COLL))
		op->handle = prof_start(group->comm, &event);
}

/* Inside ncclGroupEnd(): launch the kernel, then tell of its tasks. */
static void group_end(const struct group *group, struct op **ops, void **parents, int n,
                      const struct options *opt)
{
	struct event event = { .type = PROF_GROUP };
	struct kernel *kernel = calloc(1, sizeof(*kernel));
	void *group_handle = NULL, *handles[2] = { NULL, NULL };
	bool late = false;

	if (!kernel)
		die("out of memory");
	*kernel = (struct kernel){ .comm = group->comm,
	                           .n_ops = n,
	                           .salt = opt->seed + ops[0]->seq * 7 + group->comm->id % 64 };
	kernel->stuck = opt->mismatched;
	kernel->deaf = opt->deaf;
	kernel->corrupt = group->comm->global_rank == opt->corrupt_rank;
	prof_record(group->api_handle, PROF_STATE_GROUP_END_START, 0);
	for (int i = 0; i < n; i++)
		kernel->ops[i] = ops[i];
	launch(group, kernel);
	if (group->mask & BITS_GROUP)
		group_handle = prof_start(group->comm, &event);
	for (int i = 0; i < n; i++)
		start_task(group, ops[i], parents[i], group_handle);
	for (int i = 0; i < n; i++) {
		handles[i] = ops[i]->handle;
		late = late || ops[i]->seq % LATE_EVERY == LATE_EVERY - 1;
		progress_add(ops[i]); /* from here on it is not ours */
	}
	if (late)
		sleep_ms(LATE_MS);
	for (int i = 0; i < n; i++)
		prof_stop(handles[i]);
	prof_stop(group_handle);
	prof_stop(group->api_handle);
}

void api_run(struct comm *comm, enum op_kind kind, size_t bytes, const struct options *opt)
{
	static const enum func funcs[OP_KINDS] = { FUNC_ALLREDUCE, FUNC_ALLGATHER,
	                                           FUNC_REDUCESCATTER, FUNC_SEND };
	struct op *ops[2];
	void *parents[2];
	struct group group;
	int n = 1;

	if (comm->n_ranks < 2) /* a copy within the GPU; NCCL tells nothing of it */
		return;
	group = group_begin(comm, kind == OP_SENDRECV ? 2 : 1);
	ops[0] = new_op(comm, funcs[kind], bytes, opt);
	parents[0] = api_call(&group, ops[0]);
	if (kind == OP_SENDRECV) {
		ops[1] = new_op(comm, FUNC_RECV, bytes, opt);
		parents[1] = api_call(&group, ops[1]);
		n = 2;
	}
	group_end(&group, ops, parents, n, opt);
}
