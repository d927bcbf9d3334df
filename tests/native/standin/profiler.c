/* SPDX-License-Identifier: Apache-2.0 */
#include "profiler.h"

#include <dlfcn.h>

#include "loader.h"

/* What NCCL's own variables may hold before a start: a plugin that does not write the handle
 * gets this back. */
#define HANDLE_LEFT_OVER ((void *)(uintptr_t)0x5ca1ab1e0ddba115)
#define WARPS 16
#define LL_BYTES (64u << 10)

static struct plugin plugin;
static int offered;
static int loads;        /* communicators that hold the library */
static bool unavailable; /* a failure is remembered for the life of the process */
static int activation_mask;

static const char *const phase_names[] = { "initial_sync", "compute", "final_sync" };

void prof_offer(int version)
{
	offered = version;
	nccl_set_version(version);
}

int prof_version(void)
{
	return plugin.version;
}

int prof_mask(void)
{
	return __atomic_load_n(&activation_mask, __ATOMIC_RELAXED);
}

static int call_init(struct comm *comm)
{
	if (plugin.version == 4)
		return plugin.v4->init(&comm->context, &activation_mask, comm->name, comm->id,
		                       comm->n_nodes, comm->n_ranks, comm->rank, nccl_log);
	if (plugin.version == 7)
		return plugin.v7->init(&comm->context, comm->id, &activation_mask, comm->name,
		                       comm->n_nodes, comm->n_ranks, comm->rank, nccl_log);
	return plugin.v5->init(&comm->context, comm->id, &activation_mask, comm->name,
	                       comm->n_nodes, comm->n_ranks, comm->rank, nccl_log);
}

static void release(void)
{
	void *library = plugin.library;

	if (--loads)
		return;
	plugin = (struct plugin){ 0 };
	dlclose(library);
}

void prof_init(struct comm *comm)
{
	if (!loads && !unavailable) {
		plugin = plugin_load(offered);
		unavailable = !plugin.version;
	}
	if (unavailable)
		return;
	loads++;
	if (call_init(comm)) {
		nccl_log(PROF_LOG_WARN, 1, __func__, __LINE__, "profiler: init of %s failed",
		         comm->name);
		release();
		return;
	}
	comm->profiled = true;
}

void prof_finalize(struct comm *comm)
{
	if (!comm->profiled)
		return;
	comm->profiled = false;
	if (plugin.version == 4) /* 2.27 does not look at the context */
		plugin.v4->finalize(comm->context);
	else if (comm->context && plugin.version == 7)
		plugin.v7->finalize(comm->context);
	else if (comm->context)
		plugin.v5->finalize(comm->context);
	release();
}

static void fill_coll(struct prof_coll_v4 *coll, const struct op *op)
{
	bool as_bytes = op->func == FUNC_ALLGATHER; /* NCCL converts it */

	coll->seq = op->seq;
	coll->func = func_name(op->func);
	coll->send = op->send;
	coll->recv = op->recv;
	coll->count = as_bytes ? op->count * sizeof(float) : op->count;
	coll->datatype = as_bytes ? "ncclInt8" : "ncclFloat32";
	coll->channels = (uint8_t)op->n_channels;
	coll->warps = WARPS;
	coll->algo = "RING";
	coll->proto = op->count * sizeof(float) < LL_BYTES ? "LL" : "SIMPLE";
}

static void fill_p2p(struct prof_p2p_v4 *p2p, const struct op *op)
{
	p2p->func = func_name(op->func);
	p2p->buff = op->recv;
	p2p->datatype = "ncclFloat32";
	p2p->count = op->count;
	p2p->peer = op->peer;
	p2p->channels = (uint8_t)op->n_channels;
}

static void fill_coll_api(struct prof_coll_api_v5 *api, const struct op *op)
{
	api->func = func_name(op->func);
	api->count = op->count;
	api->datatype = "ncclFloat32";
	api->stream = op->comm;
}

static void fill_p2p_api(struct prof_p2p_api_v5 *api, const struct op *op)
{
	api->func = func_name(op->func);
	api->count = op->count;
	api->datatype = "ncclFloat32";
	api->stream = op->comm;
}

/* NCCL fills the rank for the tasks only. */
static int rank_of(const struct event *event)
{
	bool task = event->type == PROF_COLL || event->type == PROF_P2P;

	return task ? event->op->comm->rank : 0;
}

static void start_v4(const struct comm *comm, const struct event *event, void **handle)
{
	struct prof_descr_v4 descr = { .type = (uint8_t)event->type,
	                               .parent = event->parent,
	                               .rank = rank_of(event) };

	if (event->type == PROF_COLL)
		fill_coll(&descr.coll, event->op);
	else if (event->type == PROF_P2P)
		fill_p2p(&descr.p2p, event->op);
	else if (event->type == PROF_KERNEL_CH)
		descr.kernel_ch = (struct prof_kernel_ch){ event->channel->id, event->timer_ns };
	plugin.v4->start(comm->context, handle, &descr);
}

static void start_v5(const struct comm *comm, const struct event *event, void **handle)
{
	struct prof_descr_v5 descr = { .type = event->type,
	                               .parent = event->parent,
	                               .rank = rank_of(event) };

	if (event->type == PROF_COLL) {
		fill_coll(&descr.coll.base, event->op);
		descr.coll.parent_group = event->group;
	} else if (event->type == PROF_P2P) {
		fill_p2p(&descr.p2p.base, event->op);
		descr.p2p.parent_group = event->group;
	} else if (event->type == PROF_COLL_API) {
		fill_coll_api(&descr.coll_api, event->op);
	} else if (event->type == PROF_P2P_API) {
		fill_p2p_api(&descr.p2p_api, event->op);
	} else if (event->type == PROF_GROUP_API) {
		descr.group_api.depth = event->depth;
	} else if (event->type == PROF_KERNEL_LAUNCH) {
		descr.kernel_launch.stream = (void *)(uintptr_t)comm;
	} else if (event->type == PROF_KERNEL_CH) {
		descr.kernel_ch = (struct prof_kernel_ch){ event->channel->id, event->timer_ns };
	}
	plugin.v5->start(comm->context, handle, &descr);
}

static void start_v7(const struct comm *comm, const struct event *event, void **handle)
{
	struct prof_descr_v7 descr = { .type = event->type,
	                               .parent = event->parent,
	                               .rank = rank_of(event) };

	if (event->type == PROF_COLL) {
		fill_coll(&descr.coll.base.base, event->op);
		descr.coll.base.parent_group = event->group;
		descr.coll.kernel_variant = "Generic";
	} else if (event->type == PROF_P2P) {
		fill_p2p(&descr.p2p.base.base, event->op);
		descr.p2p.base.parent_group = event->group;
	} else if (event->type == PROF_COLL_API) {
		fill_coll_api(&descr.coll_api.base, event->op);
	} else if (event->type == PROF_P2P_API) {
		fill_p2p_api(&descr.p2p_api.base, event->op);
	} else if (event->type == PROF_GROUP_API) {
		descr.group_api.depth = event->depth;
	} else if (event->type == PROF_KERNEL_LAUNCH) {
		descr.kernel_launch.stream = (void *)(uintptr_t)comm;
	} else if (event->type == PROF_KERNEL_CH) {
		descr.kernel_ch = (struct prof_kernel_ch){ event->channel->id, event->timer_ns };
	} else if (event->type == PROF_KERNEL_PHASE) {
		descr.kernel_phase =
		    (struct prof_kernel_phase){ event->channel->id, (uint8_t)event->phase,
		                                phase_names[event->phase], event->timer_ns };
	}
	plugin.v7->start(comm->context, handle, &descr);
}

void *prof_start(const struct comm *comm, const struct event *event)
{
	void *handle = HANDLE_LEFT_OVER;

	if (!comm->profiled)
		return NULL;
	if (plugin.version == 4)
		start_v4(comm, event, &handle);
	else if (plugin.version == 7)
		start_v7(comm, event, &handle);
	else
		start_v5(comm, event, &handle);
	return handle;
}

/* stop and record are the same in every table. */
void prof_stop(void *handle)
{
	if (handle)
		plugin.v5->stop(handle);
}

void prof_record(void *handle, enum prof_state state, uint64_t timer_ns)
{
	union prof_args args = { .timer_ns = timer_ns };

	if (handle)
		plugin.v5->record(handle, (int)state, &args);
}
