/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_profiler.c - the tables that NCCL looks for: each version's structures to event.h, nothing more. */
#include "abi.h"
#include "inspector.h"

enum { NCCL_SUCCESS = 0 };

/* Handle and state functions are the same in all versions. After init they have nothing to say but success. */
static int stop_event(void *handle)
{
	track_enqueued(&inspector_track, handle);
	return NCCL_SUCCESS;
}

static int record_event_state(void *handle, int state, union abi_state_args *args)
{
	if (state == ABI_STATE_KERNEL_CH_STOP && args)
		track_kernel_stop(&inspector_track, handle, args->gpu_ns);
	return NCCL_SUCCESS;
}

static int finalize(void *context)
{
	inspector_finalize(context);
	return NCCL_SUCCESS;
}

static int init(unsigned api, void **context, uint64_t comm_id, int *mask, const char *name, int nnodes,
		int nranks, int rank, abi_logger logger, void *caller)
{
	struct inspector_comm comm = {
		.api = api,
		.words = { .id = comm_id, .name = name, .nranks = nranks, .nnodes = nnodes, .rank = rank },
		.logger = logger,
		.caller = caller,
	};

	inspector_init(&comm, context, mask);
	return NCCL_SUCCESS;
}

/* Bodies lie at the same offsets in v4 to v7 (abi.h asserts it); only the width of `type` differs. */
static inline void start(void *context, void **handle, uint64_t type, void *parent,
			 const union abi_body *body, enum event_kind group)
{
	struct event event = { .kind = EVENT_OTHER, .peer = -1, .parent = parent };

	if (type == ABI_KERNEL_CH) {
		event.kind = EVENT_KERNEL;
		event.channel = body->kernel_ch.channel;
		event.gpu_ns = body->kernel_ch.gpu_ns;
	} else if (type == ABI_COLL) {
		event.kind = EVENT_OPERATION;
		event.func = body->coll.func;
		event.datatype = body->coll.datatype;
		event.algo = body->coll.algo;
		event.proto = body->coll.proto;
		event.count = body->coll.count;
		event.sequence = body->coll.sequence;
		event.channels = body->coll.channels;
	} else if (type == ABI_P2P) {
		event.kind = EVENT_OPERATION;
		event.func = body->p2p.func;
		event.datatype = body->p2p.datatype;
		event.count = body->p2p.count;
		event.peer = body->p2p.peer;
		event.channels = body->p2p.channels;
	} else if (type == ABI_GROUP) {
		event.kind = group;
	}
	*handle = track_start(&inspector_track, context, &event);
}

static int init_v4(void **context, int *mask, const char *comm_name, uint64_t comm_hash, int n_nodes,
		   int nranks, int rank, abi_logger logger)
{
	return init(4, context, comm_hash, mask, comm_name, n_nodes, nranks, rank, logger,
		    __builtin_return_address(0));
}

/* NCCL <= 2.27 starts Coll and P2p only if Group got a handle. */
static int start_event_v4(void *context, void **handle, struct abi_descriptor_v4 *event)
{
	start(context, handle, event->type, event->parent, &event->body, EVENT_GROUP);
	return NCCL_SUCCESS;
}

#define INIT(version)                                                                              \
	static int init_v##version(void **context, uint64_t comm_id, int *mask, const char *comm_name, \
				   int n_nodes, int nranks, int rank, abi_logger logger)           \
	{                                                                                          \
		return init(version, context, comm_id, mask, comm_name, n_nodes, nranks, rank, logger, \
			    __builtin_return_address(0));                                          \
	}
INIT(5)
INIT(6)
INIT(7)

static int start_event_v5(void *context, void **handle, struct abi_descriptor_v5 *event)
{
	start(context, handle, event->type, event->parent, &event->body, EVENT_OTHER);
	return NCCL_SUCCESS;
}

static int start_event_v7(void *context, void **handle, struct abi_descriptor_v7 *event)
{
	start(context, handle, event->type, event->parent, &event->body, EVENT_OTHER);
	return NCCL_SUCCESS;
}

#define NAME "slurm-nccl-inspector"

const struct abi_table_v4 ncclProfiler_v4 = { NAME, init_v4, start_event_v4, stop_event,
					      record_event_state, finalize };
const struct abi_table_v5 ncclProfiler_v5 = { NAME, init_v5, start_event_v5, stop_event,
					      record_event_state, finalize };
const struct abi_table_v5 ncclProfiler_v6 = { NAME, init_v6, start_event_v5, stop_event,
					      record_event_state, finalize };
const struct abi_table_v7 ncclProfiler_v7 = { NAME, init_v7, start_event_v7, stop_event,
					      record_event_state, finalize };
