/* SPDX-License-Identifier: Apache-2.0 */
/* start.c - descriptors of v4 to v7. The paths that a benchmark takes are asked for first. */
#include "start.h"

#define WARPS 16

static void fill_coll(struct prof_coll_v4 *coll, const struct player_op *op)
{
	coll->seq = op->seq;
	coll->func = op->func_word;
	coll->count = op->count;
	coll->root = op->root;
	coll->datatype = op->datatype;
	coll->channels = op->channels;
	coll->warps = WARPS;
	coll->algo = op->algo;
	coll->proto = op->proto;
}

static void fill_p2p(struct prof_p2p_v4 *p2p, const struct player_op *op)
{
	p2p->func = op->func_word;
	p2p->datatype = op->datatype;
	p2p->count = op->count;
	p2p->peer = op->peer;
	p2p->channels = op->channels;
}

static void fill_coll_api(struct prof_coll_api_v5 *api, const struct player_start *start)
{
	api->func = start->op->func_word;
	api->count = start->op->api_count;
	api->datatype = start->op->api_datatype;
	api->root = start->op->root;
	api->captured = start->captured;
}

static void fill_p2p_api(struct prof_p2p_api_v5 *api, const struct player_start *start)
{
	api->func = start->op->func_word;
	api->count = start->op->api_count;
	api->datatype = start->op->api_datatype;
	api->captured = start->captured;
}

static void fill_ce_coll(struct prof_ce_coll_v6 *ce, const struct player_op *op)
{
	ce->seq = op->seq;
	ce->func = op->func_word;
	ce->count = op->count;
	ce->root = op->root;
	ce->datatype = op->datatype;
	ce->sync_strategy = "UC";
}

void player_start_v4(const struct player_start *start, void **handle)
{
	struct prof_descr_v4 descr = { .type = (uint8_t)start->type,
	                               .parent = start->group ? start->group : start->parent,
	                               .rank = player_rank_told(start) };

	if (start->type == PROF_KERNEL_CH)
		descr.kernel_ch = start->kernel_ch;
	else if (start->type == PROF_COLL)
		fill_coll(&descr.coll, start->op);
	else if (start->type == PROF_P2P)
		fill_p2p(&descr.p2p, start->op);
	else if (start->type == PROF_PROXY_OP)
		descr.proxy_op = start->proxy_op;
	else if (start->type == PROF_PROXY_STEP)
		descr.proxy_step = start->proxy_step;
	else if (start->type == PROF_NET_PLUGIN)
		descr.net_plugin = start->net_plugin;
	start->comm->player->v4->start(start->comm->context, handle, &descr);
}

static void fill_rest_v5(struct prof_descr_v5 *descr, const struct player_start *start)
{
	if (start->type == PROF_PROXY_OP)
		descr->proxy_op = start->proxy_op;
	else if (start->type == PROF_PROXY_STEP)
		descr->proxy_step = start->proxy_step;
	else if (start->type == PROF_NET_PLUGIN)
		descr->net_plugin = start->net_plugin;
	else if (start->type == PROF_CE_COLL)
		fill_ce_coll(&descr->ce_coll, start->op);
	else if (start->type == PROF_CE_SYNC)
		descr->ce_sync = start->ce_sync;
	else if (start->type == PROF_CE_BATCH)
		descr->ce_batch = start->ce_batch;
	else if (start->type == PROF_KERNEL_LAUNCH)
		descr->kernel_launch.stream = (void *)(uintptr_t)start->comm;
}

void player_start_v5(const struct player_start *start, void **handle)
{
	struct prof_descr_v5 descr = { .type = start->type,
	                               .parent = start->parent,
	                               .rank = player_rank_told(start) };

	if (start->type == PROF_KERNEL_CH) {
		descr.kernel_ch = start->kernel_ch;
	} else if (start->type == PROF_COLL) {
		fill_coll(&descr.coll.base, start->op);
		descr.coll.parent_group = start->group;
	} else if (start->type == PROF_P2P) {
		fill_p2p(&descr.p2p.base, start->op);
		descr.p2p.parent_group = start->group;
	} else if (start->type == PROF_GROUP_API) {
		descr.group_api = start->group_api;
	} else if (start->type == PROF_COLL_API) {
		fill_coll_api(&descr.coll_api, start);
	} else if (start->type == PROF_P2P_API) {
		fill_p2p_api(&descr.p2p_api, start);
	} else {
		fill_rest_v5(&descr, start);
	}
	start->comm->player->v5->start(start->comm->context, handle, &descr);
}

static void fill_rest_v7(struct prof_descr_v7 *descr, const struct player_start *start)
{
	if (start->type == PROF_KERNEL_PHASE) {
		descr->kernel_phase = start->kernel_phase;
	} else if (start->type == PROF_PROXY_OP) {
		descr->proxy_op = start->proxy_op;
	} else if (start->type == PROF_PROXY_STEP) {
		descr->proxy_step = start->proxy_step;
	} else if (start->type == PROF_NET_PLUGIN) {
		descr->net_plugin = start->net_plugin;
	} else if (start->type == PROF_CE_COLL) {
		fill_ce_coll(&descr->ce_coll.base, start->op);
		descr->ce_coll.user_tag = start->op->user_tag;
	} else if (start->type == PROF_CE_SYNC) {
		descr->ce_sync = start->ce_sync;
	} else if (start->type == PROF_CE_BATCH) {
		descr->ce_batch = start->ce_batch;
	} else if (start->type == PROF_KERNEL_LAUNCH) {
		descr->kernel_launch.stream = (void *)(uintptr_t)start->comm;
	}
}

void player_start_v7(const struct player_start *start, void **handle)
{
	struct prof_descr_v7 descr = { .type = start->type,
	                               .parent = start->parent,
	                               .rank = player_rank_told(start) };

	if (start->type == PROF_KERNEL_CH) {
		descr.kernel_ch = start->kernel_ch;
	} else if (start->type == PROF_COLL) {
		fill_coll(&descr.coll.base.base, start->op);
		descr.coll.base.parent_group = start->group;
		descr.coll.kernel_variant = start->op->kernel_variant;
		descr.coll.symmetric = start->op->symmetric;
		descr.coll.user_tag = start->op->user_tag;
	} else if (start->type == PROF_P2P) {
		fill_p2p(&descr.p2p.base.base, start->op);
		descr.p2p.base.parent_group = start->group;
		descr.p2p.user_tag = start->op->user_tag;
	} else if (start->type == PROF_GROUP_API) {
		descr.group_api = start->group_api;
	} else if (start->type == PROF_COLL_API) {
		fill_coll_api(&descr.coll_api.base, start);
		descr.coll_api.user_tag = start->op->user_tag;
	} else if (start->type == PROF_P2P_API) {
		fill_p2p_api(&descr.p2p_api.base, start);
		descr.p2p_api.user_tag = start->op->user_tag;
	} else {
		fill_rest_v7(&descr, start);
	}
	start->comm->player->v7->start(start->comm->context, handle, &descr);
}
