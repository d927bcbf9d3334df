/* SPDX-License-Identifier: Apache-2.0 */
#include "tables.h"

#include "hot/calls.h"
#include "hot/clockmix.h"
#include "hot/coll.h"
#include "hot/hosttime.h"
#include "hot/kernels.h"
#include "hot/labels.h"
#include "hot/send.h"
#include "hot/start.h"
#include "nccl/event.h"
#include "nccl/strings.h"
#include "net/proxy.h"
#include "net/queues.h"

int tables_finalize(void *context)
{
	inspector_finalize(context);
	return NCCL_SUCCESS;
}

int tables_init(unsigned api, void **context, uint64_t comm_id, int *mask, const char *name,
                int nnodes, int nranks, int rank, abi_logger logger, void *caller)
{
	struct inspector_comm comm = {
		.api = api,
		.fields = { .id = comm_id,
		            .name = name,
		            .nranks = nranks,
		            .nnodes = nnodes,
		            .rank = rank },
		.logger = logger,
		.caller = caller,
	};

	inspector_init(&comm, context, mask);
	return NCCL_SUCCESS;
}

static int init_v4(void **context, int *mask, const char *comm_name, uint64_t comm_hash,
                   int n_nodes, int nranks, int rank, abi_logger logger)
{
	return tables_init(4, context, comm_hash, mask, comm_name, n_nodes, nranks, rank, logger,
	                   __builtin_return_address(0));
}

#define INIT_V5(version)                                                                           \
	static int init_v##version(void **context, uint64_t comm_id, int *mask,                    \
	                           const char *comm_name, int n_nodes, int nranks, int rank,       \
	                           abi_logger logger)                                              \
	{                                                                                          \
		return tables_init(version, context, comm_id, mask, comm_name, n_nodes, nranks,    \
		                   rank, logger, __builtin_return_address(0));                     \
	}
INIT_V5(5)
INIT_V5(6)
INIT_V5(7)

/* Kernel events are by far the most: they come first, and need no frame on the stack. */
#define OTHER __attribute__((noinline))

/* What follows ends with a jump wherever it can: no frame, no way back. */
OTHER static int start_kernel_slowly(void **handle, void *operation,
                                     const struct abi_kernel_ch *kernel)
{
	*handle = track_kernel_start_slowly(TRACK, operation, kernel->channel, kernel->gpu_ns);
	return NCCL_SUCCESS;
}

/* NCCL <= 2.27 starts Coll and P2p only if Group got a handle. */
TRACK_HOT OTHER static int start_other_v4(void *context, void **handle,
                                          const struct abi_descriptor_v4 *event)
{
	*handle = NULL;
	if (event->type == ABI_COLL)
		return track_coll(TRACK, context, &event->body.coll, handle);
	if (event->type == ABI_GROUP)
		*handle = track_old_group_start(TRACK, context);
	else if (event->type == ABI_P2P)
		return track_p2p(TRACK, context, event->parent, NULL, &event->body.p2p, handle);
	else if (event->type == ABI_KERNEL_CH)
		return start_kernel_slowly(handle, event->parent, &event->body.kernel_ch);
	else if (event->type == ABI_PROXY_STEP)
		*handle = net_step_start(NET, event->parent);
	else if (event->type == ABI_PROXY_OP)
		*handle = net_op_start(NET, context, event->parent, &event->body.proxy_op);
	else if (event->type == ABI_NET_PLUGIN)
		net_plugin_start(NET, event->parent, &event->body.net_plugin);
	return NCCL_SUCCESS;
}

TRACK_HOT static int start_event_v4(void *context, void **handle, struct abi_descriptor_v4 *event)
{
	const struct abi_kernel_ch *kernel = &event->body.kernel_ch;

	if (track_likely(event->type == ABI_KERNEL_CH) &&
	    track_likely(track_kernel_start_fast(TRACK, event->parent, kernel->channel,
	                                         kernel->gpu_ns, handle)))
		return NCCL_SUCCESS;
	return start_other_v4(context, handle, event);
}

/* A captured call runs later, if at all, and tells nothing of when: its operations are to know of
 * it. */
OTHER static int coll_call(void *context, void **handle, const struct abi_coll_api *call)
{
	const struct event event = { .peer = EVENT_NO_PEER,
	                             .func = call->func,
	                             .datatype = call->datatype,
	                             .count = call->count,
	                             .root = call->root };

	if (call->captured) {
		*handle = handle_of(HANDLE_CAPTURED);
		track_captured_call(TRACK, context, &event);
	} else {
		track_coll_call(TRACK, context, &event);
	}
	return NCCL_SUCCESS;
}

OTHER static int captured_group(void *context)
{
	clockmix_captured(TRACK, context);
	return NCCL_SUCCESS;
}

/* In which group its operations are tells their plan, at each launch of the graph. */
OTHER static int captured_p2p(void *context, void **handle)
{
	track_captured_p2p(TRACK, context);
	*handle = handle_of(HANDLE_CAPTURED);
	return NCCL_SUCCESS;
}

/* `call`: what the call of an operation got that is told now. */
static inline void replayed(void *context, void *call)
{
	if (!track_likely(handle_kind(handle_bits(call)) != HANDLE_CAPTURED))
		clockmix_replayed(TRACK, context);
}

OTHER static int start_captured_coll(void *context, void **handle, void *call,
                                     const struct abi_coll *coll, bool symmetric)
{
	replayed(context, call);
	return symmetric ? track_symmetric_coll(TRACK, context, call, coll, handle)
	                 : track_coll(TRACK, context, coll, handle);
}

OTHER static int start_captured_p2p(void *context, void **handle, void *call,
                                    const struct abi_p2p_v5 *p2p)
{
	clockmix_replayed(TRACK, context);
	return track_p2p(TRACK, context, call, p2p->parent_group, &p2p->p2p, handle);
}

static inline int start_p2p(void *context, void **handle, void *call, const struct abi_p2p_v5 *p2p)
{
	return track_likely(handle_kind(handle_bits(call)) != HANDLE_CAPTURED)
		   ? track_p2p(TRACK, context, call, p2p->parent_group, &p2p->p2p, handle)
		   : start_captured_p2p(context, handle, call, p2p);
}

OTHER static int copy_engine(void *context, const struct abi_ce_coll *ce)
{
	track_copy_engine(TRACK, context, ce);
	return NCCL_SUCCESS;
}

OTHER static int start_proxy(void *context, void **handle, uint64_t type, void *parent,
                             const union abi_body_v5 *body)
{
	if (type == ABI_PROXY_STEP)
		*handle = net_step_start(NET, parent);
	else if (type == ABI_PROXY_OP)
		*handle = net_op_start(NET, context, parent, &body->common.proxy_op);
	else if (type == ABI_NET_PLUGIN)
		net_plugin_start(NET, parent, &body->common.net_plugin);
	else if (type == ABI_KERNEL_LAUNCH)
		*handle = hosttime_launch_begins(HOST, context);
	return NCCL_SUCCESS;
}

static inline int start_group_api(void *context, void **handle, const struct abi_group_api *call)
{
	*handle = track_group_start(TRACK, context);
	return track_likely(!call->captured) ? NCCL_SUCCESS : captured_group(context);
}

static inline int start_p2p_api(void *context, void **handle, void *group,
                                const struct abi_p2p_api *call)
{
	if (!track_likely(!call->captured))
		return captured_p2p(context, handle);
	*handle = track_p2p_call(TRACK, context, group);
	return NCCL_SUCCESS;
}

/* Inline in each version: four of five calls for an operation pass here, and end with a jump. */
static inline __attribute__((always_inline)) int start_other(void *context, void **handle,
                                                             uint64_t type, void *parent,
                                                             const union abi_body_v5 *body,
                                                             bool symmetric)
{
	*handle = NULL;
	if (type == ABI_COLL) {
		if (!track_likely(!parent))
			return start_captured_coll(context, handle, parent, &body->common.coll,
			                           symmetric);
		return symmetric ? track_symmetric_coll(TRACK, context, parent, &body->common.coll,
		                                        handle)
		                 : track_coll(TRACK, context, &body->common.coll, handle);
	}
	if (type == ABI_GROUP)
		*handle = track_plan_start(TRACK, context);
	else if (type == ABI_GROUP_API)
		return start_group_api(context, handle, &body->group_api);
	else if (type == ABI_COLL_API)
		return track_likely(!body->coll_api.captured) &&
		               track_knows(TRACK, context, body->coll_api.func)
			   ? NCCL_SUCCESS
			   : coll_call(context, handle, &body->coll_api);
	else if (type == ABI_P2P)
		return start_p2p(context, handle, parent, &body->p2p_v5);
	else if (type == ABI_P2P_API)
		return start_p2p_api(context, handle, parent, &body->p2p_api);
	else if (type == ABI_CE_COLL)
		return copy_engine(context, &body->ce_coll);
	else if (type == ABI_KERNEL_CH)
		return start_kernel_slowly(handle, parent, &body->common.kernel_ch);
	else
		return start_proxy(context, handle, type, parent, body);
	return NCCL_SUCCESS;
}

TRACK_HOT OTHER static int start_other_v5(void *context, void **handle,
                                          const struct abi_descriptor_v5 *event)
{
	return start_other(context, handle, event->type, event->parent, &event->body, false);
}

TRACK_HOT static int start_event_v5(void *context, void **handle, struct abi_descriptor_v5 *event)
{
	const struct abi_kernel_ch *kernel = &event->body.common.kernel_ch;

	if (track_likely(event->type == ABI_KERNEL_CH) &&
	    track_likely(track_kernel_start_fast(TRACK, event->parent, kernel->channel,
	                                         kernel->gpu_ns, handle)))
		return NCCL_SUCCESS;
	return start_other_v5(context, handle, event);
}

/* Labels, which few operations have. */
OTHER static int told_v7(const void *context, const void *handle,
                         const struct abi_descriptor_v7 *event)
{
	if (event->type == ABI_COLL) {
		const struct abi_coll_v7 *coll = &event->coll_v7;

		labels_told(TRACK, context, coll->user_tag,
		            coll->is_symmetric ? coll->kernel_variant : NULL,
		            coll->v5.coll.count * strings_datatype_bytes(coll->v5.coll.datatype),
		            handle);
	} else if (event->type == ABI_P2P) {
		const struct abi_p2p *p2p = &event->p2p_v7.p2p;

		if (TRACK->options.p2p)
			labels_told(TRACK, context, event->p2p_v7.user_tag, NULL,
			            p2p->count * strings_datatype_bytes(p2p->datatype), handle);
	} else {
		labels_told(TRACK, context, event->ce_coll_v7.user_tag, NULL,
		            track_copy_engine_bytes(TRACK, context, &event->ce_coll_v7.v6), NULL);
	}
	return NCCL_SUCCESS;
}

/* Whether v7 tells more of it than v5: then it is a Coll, P2p or CeColl. */
static inline bool says_more(const struct abi_descriptor_v7 *event)
{
	if (event->type == ABI_COLL)
		return event->coll_v7.user_tag || event->coll_v7.is_symmetric || TRACK->traces;
	if (event->type == ABI_P2P)
		return event->p2p_v7.user_tag || TRACK->traces;
	return event->type == ABI_CE_COLL && event->ce_coll_v7.user_tag;
}

OTHER static int start_telling_v7(void *context, void **handle,
                                  const struct abi_descriptor_v7 *event)
{
	start_other(context, handle, event->type, event->parent, &event->body,
	            event->type == ABI_COLL && event->coll_v7.is_symmetric);
	told_v7(context, *handle, event);
	if (track_likely(!TRACK->traces))
		return NCCL_SUCCESS;
	if (event->type == ABI_COLL)
		track_note(TRACK, *handle, event->coll_v7.user_tag, event->coll_v7.kernel_variant);
	else if (event->type == ABI_P2P)
		track_note(TRACK, *handle, event->p2p_v7.user_tag, NULL);
	return NCCL_SUCCESS;
}

TRACK_HOT OTHER static int start_other_v7(void *context, void **handle,
                                          const struct abi_descriptor_v7 *event)
{
	if (event->type == ABI_KERNEL_PHASE) {
		*handle = track_phase_start(TRACK, event->parent, event->kernel_phase.phase);
		return NCCL_SUCCESS;
	}
	if (!track_likely(!says_more(event)))
		return start_telling_v7(context, handle, event);
	return start_other(context, handle, event->type, event->parent, &event->body, false);
}

TRACK_HOT static int start_event_v7(void *context, void **handle, struct abi_descriptor_v7 *event)
{
	const struct abi_kernel_ch *kernel = &event->body.common.kernel_ch;

	if (track_likely(event->type == ABI_KERNEL_CH) &&
	    track_likely(track_kernel_start_fast(TRACK, event->parent, kernel->channel,
	                                         kernel->gpu_ns, handle)))
		return NCCL_SUCCESS;
	return start_other_v7(context, handle, event);
}

OTHER static int stop_other(void *handle)
{
	unsigned kind = handle_kind(handle_bits(handle));

	if (kind == HANDLE_PLAN)
		track_plan_stop(TRACK, handle);
	else if (kind == HANDLE_LAUNCH)
		hosttime_launch_over(HOST, handle);
	else
		track_enqueued(TRACK, handle);
	if (net_is_handle(handle))
		net_stop(NET, handle);
	return NCCL_SUCCESS;
}

OTHER static int stop_timed_group(void *handle)
{
	hosttime_call_over(HOST, handle);
	return track_group_stop(TRACK, handle);
}

TRACK_HOT int tables_stop_event(void *handle)
{
	unsigned kind = handle_kind(handle_bits(handle));

	if (track_likely(kind == HANDLE_KERNEL)) /* its end came with state 22 */
		return NCCL_SUCCESS;
	if (kind == HANDLE_GROUP)
		return track_likely(!TRACK->options.host_time) ? track_group_stop(TRACK, handle)
		                                               : stop_timed_group(handle);
	if (kind == HANDLE_P2P_CALL || (kind == HANDLE_OPERATION && !TRACK->traces))
		return NCCL_SUCCESS;
	return stop_other(handle);
}

TRACK_HOT OTHER static int other_state(void *handle, int state, union abi_state_args *args)
{
	if (state == ABI_STATE_KERNEL_PHASE_STOP && args)
		track_phase_stop(TRACK, handle, args->gpu_ns);
	else if (net_is_handle(handle))
		net_step_state(NET, handle, state, args);
	else if (state == ABI_STATE_GROUP_END_BEGINS)
		hosttime_call_begins(HOST, handle);
	return NCCL_SUCCESS;
}

TRACK_HOT static int record_event_state(void *handle, int state, union abi_state_args *args)
{
	if (track_likely(state == ABI_STATE_KERNEL_CH_STOP && args))
		return track_kernel_stop(TRACK, handle, args->gpu_ns);
	/* Two of each call, for `host_time` only. */
	if (track_likely(handle_kind(handle_bits(handle)) == HANDLE_GROUP &&
	                 !TRACK->options.host_time))
		return NCCL_SUCCESS;
	return other_state(handle, state, args);
}

EXPORT const struct abi_table_v4 ncclProfiler_v4 = {
	NAME, init_v4, start_event_v4, tables_stop_event, record_event_state, tables_finalize
};
EXPORT const struct abi_table_v5 ncclProfiler_v5 = {
	NAME, init_v5, start_event_v5, tables_stop_event, record_event_state, tables_finalize
};
EXPORT const struct abi_table_v5 ncclProfiler_v6 = {
	NAME, init_v6, start_event_v5, tables_stop_event, record_event_state, tables_finalize
};
EXPORT const struct abi_table_v7 ncclProfiler_v7 = {
	NAME, init_v7, start_event_v7, tables_stop_event, record_event_state, tables_finalize
};
