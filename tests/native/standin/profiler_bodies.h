/* SPDX-License-Identifier: Apache-2.0 */
/* profiler_bodies.h - what the descriptors of proxy, network and copy-engine events carry.
 *
 * A body lies behind the descriptor's head. The assertions give the offset in the whole
 * descriptor, as the tables do.
 */
#ifndef STANDIN_PROFILER_BODIES_H
#define STANDIN_PROFILER_BODIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct prof_proxy_op { /* all versions */
	int32_t pid;   /* of the process that the operation is of */
	uint8_t channel;
	int peer;
	int n_steps;
	int chunk_bytes;
	int is_send;
};

struct prof_proxy_step { /* all versions */
	int step;
};

struct prof_net_plugin { /* v3 */
	int64_t id;
	void *data;
};

struct prof_ce_coll_v6 {
	uint64_t seq;
	const char *func;
	const void *send;
	void *recv;
	size_t count;
	int root;
	const char *datatype;
	const char *sync_strategy;
	bool intra_batch_sync;
	uint32_t batch_size;
	uint32_t n_batches;
	uint32_t ce_seq;
	void *stream;
};

struct prof_ce_coll_v7 {
	struct prof_ce_coll_v6 base;
	uint64_t user_tag;
};

struct prof_ce_sync { /* v6 */
	bool is_complete;
	int n_ranks;
};

struct prof_ce_batch { /* v6 */
	int n_ops;
	size_t bytes;
	bool intra_sync;
};

#define PROF_BODY_AT(name, member, offset)                                                         \
	_Static_assert(24 + offsetof(struct prof_##name, member) == (offset), #name " " #member)

PROF_BODY_AT(proxy_op, pid, 24);
PROF_BODY_AT(proxy_op, channel, 28);
PROF_BODY_AT(proxy_op, peer, 32);
PROF_BODY_AT(proxy_op, n_steps, 36);
PROF_BODY_AT(proxy_op, chunk_bytes, 40);
PROF_BODY_AT(proxy_op, is_send, 44);
PROF_BODY_AT(proxy_step, step, 24);
PROF_BODY_AT(net_plugin, id, 24);
PROF_BODY_AT(net_plugin, data, 32);
PROF_BODY_AT(ce_coll_v6, seq, 24);
PROF_BODY_AT(ce_coll_v6, func, 32);
PROF_BODY_AT(ce_coll_v6, send, 40);
PROF_BODY_AT(ce_coll_v6, recv, 48);
PROF_BODY_AT(ce_coll_v6, count, 56);
PROF_BODY_AT(ce_coll_v6, root, 64);
PROF_BODY_AT(ce_coll_v6, datatype, 72);
PROF_BODY_AT(ce_coll_v6, sync_strategy, 80);
PROF_BODY_AT(ce_coll_v6, intra_batch_sync, 88);
PROF_BODY_AT(ce_coll_v6, batch_size, 92);
PROF_BODY_AT(ce_coll_v6, n_batches, 96);
PROF_BODY_AT(ce_coll_v6, ce_seq, 100);
PROF_BODY_AT(ce_coll_v6, stream, 104);
PROF_BODY_AT(ce_coll_v7, user_tag, 112);
PROF_BODY_AT(ce_sync, is_complete, 24);
PROF_BODY_AT(ce_sync, n_ranks, 28);
PROF_BODY_AT(ce_batch, n_ops, 24);
PROF_BODY_AT(ce_batch, bytes, 32);
PROF_BODY_AT(ce_batch, intra_sync, 40);

#undef PROF_BODY_AT

#endif
