/* SPDX-License-Identifier: Apache-2.0 */
/* v1 to v3: NCCL 2.23 to 2.26. */
#include "tables.h"

#include "hot/calls.h"
#include "hot/kernels.h"
#include "hot/start.h"
#include "nccl/strings.h"

/* v1 to v3: the communicator says who it is with its first operation. */
#define INIT_V1(version)                                                                           \
	static int init_v##version(void **context, int *mask)                                      \
	{                                                                                          \
		return tables_init(version, context, 0, mask, NULL, 0, 0, -1, NULL,                \
		                   __builtin_return_address(0));                                   \
	}
INIT_V1(1)
INIT_V1(2)
INIT_V1(3)

/* v1 to v3 say with each operation whose it is. */
static void *old_operation(void *context, const char *comm_name, uint64_t comm_hash, int rank,
                           const struct event *event)
{
	if (track_name(TRACK, context, comm_hash, comm_name, rank))
		inspector_named(context);
	return track_operation(TRACK, context, event);
}

/* What v2 and v3 have in a Coll, at other places. */
#define OLD_COLL(context, rank, coll)                                                              \
	old_operation(context, (coll)->comm_name, (coll)->comm_hash, rank,                         \
	              &(struct event){ .peer = EVENT_NO_PEER,                                      \
	                               .func = (coll)->func,                                       \
	                               .datatype = (coll)->datatype,                               \
	                               .algo = (coll)->algo,                                       \
	                               .proto = (coll)->proto,                                     \
	                               .count = (coll)->count,                                     \
	                               .sequence = (coll)->sequence,                               \
	                               .root = (coll)->root,                                       \
	                               .channels = (coll)->channels })

static int start_event_v1(void *context, void **handle, struct abi_descriptor_v1 *event)
{
	*handle = NULL;
	if (event->type == ABI_COLL) {
		const struct abi_coll_v1 *coll = &event->coll;

		*handle =
		    old_operation(context, coll->comm_name, coll->comm_hash, event->rank,
		                  &(struct event){ .peer = EVENT_NO_PEER,
		                                   .func = strings_v1_func(coll->func),
		                                   .datatype = strings_v1_datatype(coll->datatype),
		                                   .algo = strings_v1_algo(coll->algo),
		                                   .proto = strings_v1_proto(coll->proto),
		                                   .count = coll->count,
		                                   .sequence = coll->sequence,
		                                   .root = coll->root,
		                                   .channels = coll->channels });
	} else if (event->type == ABI_P2P) {
		const struct abi_p2p_v1 *p2p = &event->p2p;

		*handle =
		    old_operation(context, p2p->comm_name, p2p->comm_hash, event->rank,
		                  &(struct event){ .peer = p2p->peer,
		                                   .func = strings_v1_func(p2p->func),
		                                   .datatype = strings_v1_datatype(p2p->datatype),
		                                   .count = p2p->count,
		                                   .parent = event->parent,
		                                   .channels = EVENT_CHANNELS_UNKNOWN });
	} else if (event->type == ABI_GROUP) {
		*handle = track_old_group_start(TRACK, context);
	}
	return NCCL_SUCCESS;
}

static void *p2p_v2(void *context, void *parent, int rank, const struct abi_p2p_v2 *p2p)
{
	return old_operation(context, p2p->comm_name, p2p->comm_hash, rank,
	                     &(struct event){ .peer = p2p->peer,
	                                      .func = p2p->func,
	                                      .datatype = p2p->datatype,
	                                      .count = p2p->count,
	                                      .parent = parent,
	                                      .channels = EVENT_CHANNELS_UNKNOWN });
}

static int start_event_v2(void *context, void **handle, struct abi_descriptor_v2 *event)
{
	*handle = NULL;
	if (event->type == ABI_COLL)
		*handle = OLD_COLL(context, event->rank, &event->coll);
	else if (event->type == ABI_P2P)
		*handle = p2p_v2(context, event->parent, event->rank, &event->p2p);
	else if (event->type == ABI_GROUP)
		*handle = track_old_group_start(TRACK, context);
	return NCCL_SUCCESS;
}

static int start_event_v3(void *context, void **handle, struct abi_descriptor_v3 *event)
{
	*handle = NULL;
	if (event->type == ABI_KERNEL_CH)
		*handle = track_kernel_start(TRACK, event->parent, event->kernel_ch.channel,
		                             track_now_ns(TRACK));
	else if (event->type == ABI_COLL)
		*handle = OLD_COLL(context, event->rank, &event->coll);
	else if (event->type == ABI_P2P)
		*handle = p2p_v2(context, event->parent, event->rank, &event->p2p);
	else if (event->type == ABI_GROUP)
		*handle = track_old_group_start(TRACK, context);
	return NCCL_SUCCESS;
}

static int stop_event_v3(void *handle)
{
	unsigned kind = handle_kind(handle_bits(handle));

	if (kind == HANDLE_KERNEL || kind == HANDLE_SLOTLESS_KERNEL)
		track_kernel_stop(TRACK, handle, track_now_ns(TRACK));
	return tables_stop_event(handle);
}

static int no_state(void *handle, int state, union abi_state_args *args)
{
	(void)handle;
	(void)state;
	(void)args;
	return NCCL_SUCCESS;
}

EXPORT const struct abi_table_v1 ncclProfiler_v1 = { NAME,           init_v1,
                                                     start_event_v1, tables_stop_event,
                                                     no_state,       tables_finalize };
EXPORT const struct abi_table_v2 ncclProfiler_v2 = { NAME,           init_v2,
                                                     start_event_v2, tables_stop_event,
                                                     no_state,       tables_finalize };
EXPORT const struct abi_table_v3 ncclProfiler_v3 = { NAME,          init_v3,  start_event_v3,
                                                     stop_event_v3, no_state, tables_finalize };
