/* SPDX-License-Identifier: Apache-2.0 */
/* start.h - a start of an event, before it is put into the descriptor of a version. */
#ifndef PLAYER_START_H
#define PLAYER_START_H

#include "player.h"

struct player_start {
	const struct player_comm *comm;
	uint64_t type;
	void *parent;
	void *group;                /* Coll, P2p: parentGroup from v5 on, parent before */
	const struct player_op *op; /* Coll, P2p, CollApi, P2pApi, CeColl */
	union {
		struct prof_group_api group_api;
		struct prof_kernel_ch kernel_ch;
		struct prof_kernel_phase kernel_phase;
		struct prof_proxy_op proxy_op;
		struct prof_proxy_step proxy_step;
		struct prof_net_plugin net_plugin;
		struct prof_ce_sync ce_sync;
		struct prof_ce_batch ce_batch;
		bool captured; /* CollApi, P2pApi */
	};
};

/* Fill the version's descriptor and call the plugin. */
void player_start_v1(const struct player_start *start, void **handle);
void player_start_v2(const struct player_start *start, void **handle);
void player_start_v3(const struct player_start *start, void **handle);
void player_start_v4(const struct player_start *start, void **handle);
void player_start_v5(const struct player_start *start, void **handle); /* and v6 */
void player_start_v7(const struct player_start *start, void **handle);

/* NCCL fills the rank of tasks and of what is below them, but for KernelCh and KernelPhase. */
static inline int player_rank_told(const struct player_start *start)
{
	const uint64_t with_rank = PROF_COLL | PROF_P2P | PROF_PROXY_OP | PROF_PROXY_STEP |
	                           PROF_NET_PLUGIN | PROF_CE_COLL | PROF_CE_SYNC | PROF_CE_BATCH;

	return start->type & with_rank ? start->comm->rank : 0;
}

#endif
