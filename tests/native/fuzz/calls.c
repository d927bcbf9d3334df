/* SPDX-License-Identifier: Apache-2.0 */
#include "calls.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

extern const struct abi_table_v1 ncclProfiler_v1;
extern const struct abi_table_v2 ncclProfiler_v2;
extern const struct abi_table_v3 ncclProfiler_v3;
extern const struct abi_table_v4 ncclProfiler_v4;
extern const struct abi_table_v5 ncclProfiler_v5, ncclProfiler_v6;
extern const struct abi_table_v7 ncclProfiler_v7;

static void want(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "%s\n", what);
	abort();
}

__attribute__((format(printf, 5, 6))) static void
take_note(int level, unsigned long subsystem, const char *file, int line, const char *format, ...)
{
	char text[1024];
	va_list args;

	(void)level;
	(void)subsystem;
	(void)line;
	va_start(args, format);
	want(vsnprintf(text, sizeof(text), format, args) >= 0 && file,
	     "a note that cannot be read");
	va_end(args);
}

void calls_init(unsigned api, void **context, int *mask, const struct calls_words *w)
{
	int result;

	*context = CALLS_UNWRITTEN;
	if (api <= 3) {
		abi_init_v1 init = api == 1   ? ncclProfiler_v1.init
		                   : api == 2 ? ncclProfiler_v2.init
		                              : ncclProfiler_v3.init;

		result = init(context, mask);
	} else if (api == 4) {
		result = ncclProfiler_v4.init(context, mask, w->name, w->id, w->nnodes, w->nranks,
		                              w->rank, take_note);
	} else {
		abi_init_v5 init = api == 5   ? ncclProfiler_v5.init
		                   : api == 6 ? ncclProfiler_v6.init
		                              : ncclProfiler_v7.init;

		result =
		    init(context, w->id, mask, w->name, w->nnodes, w->nranks, w->rank, take_note);
	}
	want(!result && *context != CALLS_UNWRITTEN, "init failed");
	want(*context || !*mask, "NCCL is asked for events of a communicator that is not measured");
}

void calls_finalize(unsigned api, void *context)
{
	want(!(api <= 3 ? ncclProfiler_v3.finalize : ncclProfiler_v7.finalize)(context),
	     "finalize failed");
}

uint64_t calls_type(unsigned api, uint64_t type)
{
	return api <= 4 ? (uint8_t)type : type;
}

static int start_v1(void *context, void **handle, uint64_t type, void *parent,
                    const struct calls_words *w)
{
	struct abi_descriptor_v1 event = { .type = (uint8_t)type,
	                                   .parent = parent,
	                                   .rank = w->rank };

	if (type == ABI_COLL)
		event.coll = (struct abi_coll_v1){ .comm_name = w->name,
		                                   .comm_hash = w->id,
		                                   .sequence = w->sequence,
		                                   .func = w->func_number,
		                                   .count = w->count,
		                                   .datatype = w->datatype_number,
		                                   .channels = w->channels,
		                                   .algo = w->algo_number,
		                                   .proto = w->proto_number };
	else if (type == ABI_P2P)
		event.p2p = (struct abi_p2p_v1){ .comm_name = w->name,
		                                 .comm_hash = w->id,
		                                 .func = w->func_number,
		                                 .datatype = w->datatype_number,
		                                 .count = w->count,
		                                 .peer = w->peer };
	return ncclProfiler_v1.start_event(context, handle, &event);
}

/* What v2 and v3 have at different places. */
#define OLD_COLL(w)                                                                                \
	{ .comm_name = (w)->name,                                                                  \
	  .comm_hash = (w)->id,                                                                    \
	  .sequence = (w)->sequence,                                                               \
	  .func = (w)->func,                                                                       \
	  .count = (w)->count,                                                                     \
	  .datatype = (w)->datatype,                                                               \
	  .channels = (w)->channels,                                                               \
	  .algo = (w)->algo,                                                                       \
	  .proto = (w)->proto }

static struct abi_p2p_v2 old_p2p(const struct calls_words *w)
{
	return (struct abi_p2p_v2){ .comm_name = w->name,
	                            .comm_hash = w->id,
	                            .func = w->func,
	                            .datatype = w->datatype,
	                            .count = w->count,
	                            .peer = w->peer };
}

static int start_v2(void *context, void **handle, uint64_t type, void *parent,
                    const struct calls_words *w)
{
	struct abi_descriptor_v2 event = { .type = (uint8_t)type,
	                                   .parent = parent,
	                                   .rank = w->rank };

	if (type == ABI_COLL)
		event.coll = (struct abi_coll_v2)OLD_COLL(w);
	else if (type == ABI_P2P)
		event.p2p = old_p2p(w);
	return ncclProfiler_v2.start_event(context, handle, &event);
}

static int start_v3(void *context, void **handle, uint64_t type, void *parent,
                    const struct calls_words *w)
{
	struct abi_descriptor_v3 event = { .type = (uint8_t)type,
	                                   .parent = parent,
	                                   .rank = w->rank };

	if (type == ABI_COLL)
		event.coll = (struct abi_coll_v3)OLD_COLL(w);
	else if (type == ABI_P2P)
		event.p2p = old_p2p(w);
	else if (type == ABI_KERNEL_CH)
		event.kernel_ch.channel = w->channel;
	return ncclProfiler_v3.start_event(context, handle, &event);
}

/* Mostly of a network that is known. Its payload is really there: a wild address nobody could tell
 * from a good one. */
static struct abi_net_plugin net_of(const struct calls_words *w)
{
	static const int64_t ids[] = { ABI_NET_IB_V1, ABI_NET_IB_V1, ABI_NET_SOCKET_V1,
	                               ABI_NET_IB_V1 + 1 };
	static _Thread_local struct abi_net_ib told;

	told = (struct abi_net_ib){ .type = w->captured ? 2 : ABI_NET_IB_QP,
	                            .qp = { .device = w->peer,
		                            .number =
		                                (int)((uint32_t)w->sequence << (w->channels & 31)),
		                            .length = w->count } };
	return (struct abi_net_plugin){ ids[w->channels % 4], w->foreign ? NULL : &told };
}

static union abi_body body_of(uint64_t type, const struct calls_words *w)
{
	union abi_body body = { .coll = { 0 } };

	if (type == ABI_COLL)
		body.coll = (struct abi_coll){ .sequence = w->sequence,
		                               .func = w->func,
		                               .count = w->count,
		                               .root = w->root,
		                               .datatype = w->datatype,
		                               .channels = w->channels,
		                               .algo = w->algo,
		                               .proto = w->proto };
	else if (type == ABI_P2P)
		body.p2p = (struct abi_p2p){ .func = w->func,
		                             .datatype = w->datatype,
		                             .count = w->count,
		                             .peer = w->peer,
		                             .channels = w->channels };
	else if (type == ABI_PROXY_OP)
		body.proxy_op = (struct abi_proxy_op){ .pid = w->foreign ? 1 : (int32_t)getpid(),
		                                       .channel = w->channel,
		                                       .peer = w->peer,
		                                       .is_send = w->is_send };
	else if (type == ABI_NET_PLUGIN)
		body.net_plugin = net_of(w);
	else if (type == ABI_KERNEL_CH)
		body.kernel_ch = (struct abi_kernel_ch){ w->channel, w->gpu_ns };
	return body;
}

static union abi_body_v5 body_of_v5(uint64_t type, const struct calls_words *w)
{
	union abi_body_v5 body = { .coll_v5 = { .parent_group = NULL } };

	if (type == ABI_COLL_API)
		body.coll_api = (struct abi_coll_api){ .func = w->func,
		                                       .count = w->count,
		                                       .root = w->root,
		                                       .datatype = w->datatype,
		                                       .captured = w->captured };
	else if (type == ABI_CE_COLL)
		body.ce_coll = (struct abi_ce_coll){ .sequence = w->sequence,
		                                     .func = w->func,
		                                     .count = w->count,
		                                     .datatype = w->datatype };
	else if (type == ABI_GROUP_API)
		body.group_api = (struct abi_group_api){ w->captured, 1 };
	else if (type == ABI_P2P)
		body.p2p_v5 = (struct abi_p2p_v5){ body_of(type, w).p2p, w->plan };
	else
		body.common = body_of(type, w);
	return body;
}

static int start_v7(void *context, void **handle, uint64_t type, void *parent,
                    const struct calls_words *w)
{
	struct abi_descriptor_v7 event = { .type = type, .parent = parent, .rank = w->rank };

	event.body = body_of_v5(type, w);
	if (type == ABI_COLL) {
		event.coll_v7.is_symmetric = w->symmetric;
		event.coll_v7.kernel_variant = w->kernel;
		event.coll_v7.user_tag = w->user_tag;
	} else if (type == ABI_P2P) {
		event.p2p_v7.user_tag = w->user_tag;
	} else if (type == ABI_CE_COLL) {
		event.ce_coll_v7.user_tag = w->user_tag;
	} else if (type == ABI_KERNEL_PHASE) {
		event.kernel_phase =
		    (struct abi_kernel_phase){ w->channel, w->phase, NULL, w->gpu_ns };
	}
	return ncclProfiler_v7.start_event(context, handle, &event);
}

void *calls_start(unsigned api, void *context, uint64_t type, void *parent,
                  const struct calls_words *w)
{
	void *handle = CALLS_UNWRITTEN;
	int result;

	if (api == 1) {
		result = start_v1(context, &handle, type, parent, w);
	} else if (api == 2) {
		result = start_v2(context, &handle, type, parent, w);
	} else if (api == 3) {
		result = start_v3(context, &handle, type, parent, w);
	} else if (api == 4) {
		struct abi_descriptor_v4 event = { .type = (uint8_t)type,
		                                   .parent = parent,
		                                   .body = body_of(type, w) };

		result = ncclProfiler_v4.start_event(context, &handle, &event);
	} else if (api <= 6) {
		struct abi_descriptor_v5 event = { .type = type,
		                                   .parent = parent,
		                                   .body = body_of_v5(type, w) };

		result = (api == 5 ? ncclProfiler_v5 : ncclProfiler_v6)
		             .start_event(context, &handle, &event);
	} else {
		result = start_v7(context, &handle, type, parent, w);
	}
	want(!result, "a start failed");
	want(handle != CALLS_UNWRITTEN, "a start left the handle as it was");
	return handle;
}

void calls_stop(unsigned api, void *handle)
{
	want(!(api == 3 ? ncclProfiler_v3.stop_event : ncclProfiler_v7.stop_event)(handle),
	     "a stop failed");
}

void calls_state(unsigned api, void *handle, int state, union abi_state_args *args)
{
	want(!(api <= 3 ? ncclProfiler_v3.record_event_state
	                : ncclProfiler_v7.record_event_state)(handle, state, args),
	     "a state failed");
}
