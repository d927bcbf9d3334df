/* SPDX-License-Identifier: Apache-2.0 */
/* start_old.c - descriptors of v1 to v3. */
#include <string.h>

#include "start.h"

#define WARPS 16

struct word {
	const char *text;
	uint8_t number;
};

/* NCCL's numbers. Of a word that is not here 1 is told: ncclUint8 has no word. */
static const struct word datatypes[] = {
	{ "ncclInt8", 0 },    { "ncclUint8", 1 },    { "ncclInt32", 2 },   { "ncclUint32", 3 },
	{ "ncclInt64", 4 },   { "ncclUint64", 5 },   { "ncclFloat16", 6 }, { "ncclFloat32", 7 },
	{ "ncclFloat64", 8 }, { "ncclBfloat16", 9 }, { NULL, 1 },
};
static const struct word algos[] = {
	{ "TREE", 0 },          { "RING", 1 }, { "COLLNET_DIRECT", 2 },
	{ "COLLNET_CHAIN", 3 }, { "NVLS", 4 }, { "NVLS_TREE", 5 },
	{ "PAT", 6 },           { NULL, 255 },
};
static const struct word protos[] = { { "LL", 0 }, { "LL128", 1 }, { "SIMPLE", 2 }, { NULL, 255 } };

static uint8_t number_of(const struct word *words, const char *text)
{
	while (words->text && (!text || strcmp(words->text, text) != 0))
		words++;
	return words->number;
}

static void fill_coll_v1(struct prof_coll_v1 *coll, const struct player_start *start)
{
	const struct player_op *op = start->op;

	coll->name = start->comm->name;
	coll->comm_hash = start->comm->id;
	coll->seq = op->seq;
	coll->func = (uint8_t)op->func;
	coll->count = op->count;
	coll->root = op->root;
	coll->datatype = number_of(datatypes, op->datatype);
	coll->max_channels = op->channels;
	coll->warps = WARPS;
	coll->algo = number_of(algos, op->algo);
	coll->proto = number_of(protos, op->proto);
}

void player_start_v1(const struct player_start *start, void **handle)
{
	const struct player_op *op = start->op;
	struct prof_descr_v1 descr = { .type = (uint8_t)start->type,
	                               .parent = start->group ? start->group : start->parent,
	                               .rank = player_rank_told(start) };

	if (start->type == PROF_COLL)
		fill_coll_v1(&descr.coll, start);
	else if (start->type == PROF_P2P)
		descr.p2p = (struct prof_p2p_v1){ .name = start->comm->name,
		                                  .comm_hash = start->comm->id,
		                                  .func = (uint8_t)op->func,
		                                  .datatype = number_of(datatypes, op->datatype),
		                                  .count = op->count,
		                                  .peer = op->peer };
	else if (start->type == PROF_PROXY_OP)
		descr.proxy_op = start->proxy_op;
	else if (start->type == PROF_PROXY_STEP)
		descr.proxy_step = start->proxy_step;
	start->comm->player->v1->start(start->comm->context, handle, &descr);
}

static struct prof_p2p_v2 p2p_v2(const struct player_start *start)
{
	return (struct prof_p2p_v2){ .name = start->comm->name,
	                             .comm_hash = start->comm->id,
	                             .func = start->op->func_word,
	                             .datatype = start->op->datatype,
	                             .count = start->op->count,
	                             .peer = start->op->peer };
}

void player_start_v2(const struct player_start *start, void **handle)
{
	const struct player_op *op = start->op;
	struct prof_descr_v2 descr = { .type = (uint8_t)start->type,
	                               .parent = start->group ? start->group : start->parent,
	                               .rank = player_rank_told(start) };

	if (start->type == PROF_COLL)
		descr.coll = (struct prof_coll_v2){ .name = start->comm->name,
		                                    .comm_hash = start->comm->id,
		                                    .seq = op->seq,
		                                    .func = op->func_word,
		                                    .count = op->count,
		                                    .root = op->root,
		                                    .datatype = op->datatype,
		                                    .max_channels = op->channels,
		                                    .warps = WARPS,
		                                    .algo = op->algo,
		                                    .proto = op->proto };
	else if (start->type == PROF_P2P)
		descr.p2p = p2p_v2(start);
	else if (start->type == PROF_PROXY_OP)
		descr.proxy_op = start->proxy_op;
	else if (start->type == PROF_PROXY_STEP)
		descr.proxy_step = start->proxy_step;
	start->comm->player->v2->start(start->comm->context, handle, &descr);
}

void player_start_v3(const struct player_start *start, void **handle)
{
	const struct player_op *op = start->op;
	struct prof_descr_v3 descr = { .type = (uint8_t)start->type,
	                               .parent = start->group ? start->group : start->parent,
	                               .rank = player_rank_told(start) };

	if (start->type == PROF_COLL)
		descr.coll = (struct prof_coll_v3){ .name = start->comm->name,
		                                    .comm_hash = start->comm->id,
		                                    .seq = op->seq,
		                                    .func = op->func_word,
		                                    .count = op->count,
		                                    .root = op->root,
		                                    .datatype = op->datatype,
		                                    .max_channels = op->channels,
		                                    .warps = WARPS,
		                                    .algo = op->algo,
		                                    .proto = op->proto };
	else if (start->type == PROF_P2P)
		descr.p2p = p2p_v2(start);
	else if (start->type == PROF_KERNEL_CH)
		descr.kernel_ch.channel = start->kernel_ch.channel;
	else if (start->type == PROF_PROXY_OP)
		descr.proxy_op = start->proxy_op;
	else if (start->type == PROF_PROXY_STEP)
		descr.proxy_step = start->proxy_step;
	else if (start->type == PROF_NET_PLUGIN)
		descr.net_plugin = start->net_plugin;
	start->comm->player->v3->start(start->comm->context, handle, &descr);
}
