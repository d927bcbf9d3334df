/* SPDX-License-Identifier: Apache-2.0 */
/* profiler_abi.h - NCCL's profiler interface v4 to v7, as the stand-in speaks it.
 *
 * Written from the tables of offsets and not from plugin/nccl/abi.h: a field that is
 * wrong there must not be wrong here in the same way.
 */
#ifndef STANDIN_PROFILER_ABI_H
#define STANDIN_PROFILER_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "profiler_bodies.h"

enum prof_event {
	PROF_GROUP = 0x1,
	PROF_COLL = 0x2,
	PROF_P2P = 0x4,
	PROF_PROXY_OP = 0x8,
	PROF_PROXY_STEP = 0x10,
	PROF_PROXY_CTRL = 0x20,
	PROF_KERNEL_CH = 0x40,
	PROF_NET_PLUGIN = 0x80,
	PROF_GROUP_API = 0x100,     /* v5 */
	PROF_COLL_API = 0x200,      /* v5 */
	PROF_P2P_API = 0x400,       /* v5 */
	PROF_KERNEL_LAUNCH = 0x800, /* v5 */
	PROF_CE_COLL = 0x1000,      /* v6 */
	PROF_CE_SYNC = 0x2000,      /* v6 */
	PROF_CE_BATCH = 0x4000,     /* v6 */
	PROF_KERNEL_PHASE = 0x8000, /* v7 */
};

enum prof_state {
	PROF_STATE_STEP_SEND_GPU_WAIT = 8,
	PROF_STATE_STEP_SEND_WAIT = 9,
	PROF_STATE_STEP_RECV_WAIT = 10,
	PROF_STATE_STEP_RECV_FLUSH_WAIT = 11,
	PROF_STATE_STEP_RECV_GPU_WAIT = 12,
	PROF_STATE_PROXY_OP_IN_PROGRESS = 19, /* v4 */
	PROF_STATE_STEP_SEND_PEER_WAIT = 20,  /* v4 */
	PROF_STATE_NET_PLUGIN_UPDATE = 21,    /* v4 */
	PROF_STATE_KERNEL_CH_STOP = 22,
	PROF_STATE_GROUP_START_END = 23,   /* v5 */
	PROF_STATE_GROUP_END_START = 24,   /* v5 */
	PROF_STATE_KERNEL_PHASE_STOP = 31, /* v7 */
};

enum prof_level { PROF_LOG_WARN = 2, PROF_LOG_INFO = 3 };

typedef void (*prof_logger)(int level, unsigned long subsys, const char *file, int line,
                            const char *fmt, ...);

/* What the versions have in common, member by member of the descriptor's union. */
struct prof_kernel_ch {
	uint8_t channel;
	uint64_t timer_ns;
};

struct prof_group_api {
	bool captured;
	int depth;
};

struct prof_kernel_launch {
	void *stream;
};

struct prof_kernel_phase { /* v7 */
	uint8_t channel;
	uint8_t phase;
	const char *name;
	uint64_t timer_ns;
};

struct prof_coll_v4 {
	uint64_t seq;
	const char *func;
	const void *send;
	void *recv;
	size_t count;
	int root;
	const char *datatype;
	uint8_t channels;
	uint8_t warps;
	const char *algo;
	const char *proto;
};

struct prof_p2p_v4 {
	const char *func;
	void *buff;
	const char *datatype;
	size_t count;
	int peer;
	uint8_t channels;
};

struct prof_coll_v5 {
	struct prof_coll_v4 base;
	void *parent_group;
};

struct prof_p2p_v5 {
	struct prof_p2p_v4 base;
	void *parent_group;
};

struct prof_coll_v7 {
	struct prof_coll_v5 base;
	const char *kernel_variant;
	bool symmetric;
	uint64_t user_tag;
};

struct prof_p2p_v7 {
	struct prof_p2p_v5 base;
	uint64_t user_tag;
};

struct prof_coll_api_v5 {
	const char *func;
	size_t count;
	const char *datatype;
	int root;
	void *stream;
	bool captured;
};

struct prof_p2p_api_v5 {
	const char *func;
	size_t count;
	const char *datatype;
	void *stream;
	bool captured;
};

struct prof_coll_api_v7 {
	struct prof_coll_api_v5 base;
	uint64_t user_tag;
};

struct prof_p2p_api_v7 {
	struct prof_p2p_api_v5 base;
	uint64_t user_tag;
};

struct prof_descr_v4 {
	uint8_t type;
	void *parent;
	int rank;
	union {
		struct prof_coll_v4 coll;
		struct prof_p2p_v4 p2p;
		struct prof_kernel_ch kernel_ch;
		struct prof_proxy_op proxy_op;
		struct prof_proxy_step proxy_step;
		struct prof_net_plugin net_plugin;
	};
};

struct prof_descr_v5 { /* and v6, which adds ce_* */
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct prof_group_api group_api;
		struct prof_coll_api_v5 coll_api;
		struct prof_p2p_api_v5 p2p_api;
		struct prof_kernel_launch kernel_launch;
		struct prof_coll_v5 coll;
		struct prof_p2p_v5 p2p;
		struct prof_kernel_ch kernel_ch;
		struct prof_proxy_op proxy_op;
		struct prof_proxy_step proxy_step;
		struct prof_net_plugin net_plugin;
		struct prof_ce_coll_v6 ce_coll;
		struct prof_ce_sync ce_sync;
		struct prof_ce_batch ce_batch;
	};
};

struct prof_descr_v7 {
	uint64_t type;
	void *parent;
	int rank;
	union {
		struct prof_group_api group_api;
		struct prof_coll_api_v7 coll_api;
		struct prof_p2p_api_v7 p2p_api;
		struct prof_kernel_launch kernel_launch;
		struct prof_coll_v7 coll;
		struct prof_p2p_v7 p2p;
		struct prof_kernel_ch kernel_ch;
		struct prof_kernel_phase kernel_phase;
		struct prof_proxy_op proxy_op;
		struct prof_proxy_step proxy_step;
		struct prof_net_plugin net_plugin;
		struct prof_ce_coll_v7 ce_coll;
		struct prof_ce_sync ce_sync;
		struct prof_ce_batch ce_batch;
	};
};

union prof_args { /* v4 to v7; only what the stand-in sends */
	size_t trans_size;
	void *data;
	uint64_t timer_ns;
};

/* One table per version, found by its symbol `ncclProfiler_v<N>`. Result 0 is success. */
struct prof_table_v4 {
	const char *name;
	int (*init)(void **context, int *mask, const char *comm_name, uint64_t comm_hash,
	            int n_nodes, int n_ranks, int rank, prof_logger logger);
	int (*start)(void *context, void **handle, struct prof_descr_v4 *descr);
	int (*stop)(void *handle);
	int (*record)(void *handle, int state, union prof_args *args);
	int (*finalize)(void *context);
};

struct prof_table_v5 { /* and v6 */
	const char *name;
	int (*init)(void **context, uint64_t comm_id, int *mask, const char *comm_name, int n_nodes,
	            int n_ranks, int rank, prof_logger logger);
	int (*start)(void *context, void **handle, struct prof_descr_v5 *descr);
	int (*stop)(void *handle);
	int (*record)(void *handle, int state, union prof_args *args);
	int (*finalize)(void *context);
};

struct prof_table_v7 {
	const char *name;
	int (*init)(void **context, uint64_t comm_id, int *mask, const char *comm_name, int n_nodes,
	            int n_ranks, int rank, prof_logger logger);
	int (*start)(void *context, void **handle, struct prof_descr_v7 *descr);
	int (*stop)(void *handle);
	int (*record)(void *handle, int state, union prof_args *args);
	int (*finalize)(void *context);
};

#define PROF_AT(version, member, offset)                                                           \
	_Static_assert(offsetof(struct prof_descr_##version, member) == (offset),                  \
	               #version " " #member)

_Static_assert(sizeof(struct prof_descr_v4) == 104, "v4 descriptor");
_Static_assert(sizeof(struct prof_descr_v5) == 112, "v5 descriptor");
_Static_assert(sizeof(struct prof_descr_v7) == 136, "v7 descriptor");
_Static_assert(sizeof(union prof_args) == 8, "arguments of a state");
_Static_assert(sizeof(struct prof_table_v4) == 48, "v4 table");
_Static_assert(sizeof(struct prof_table_v5) == 48, "v5 table");
_Static_assert(sizeof(struct prof_table_v7) == 48, "v7 table");

PROF_AT(v4, type, 0);
PROF_AT(v4, parent, 8);
PROF_AT(v4, rank, 16);
PROF_AT(v4, coll.seq, 24);
PROF_AT(v4, coll.func, 32);
PROF_AT(v4, coll.send, 40);
PROF_AT(v4, coll.recv, 48);
PROF_AT(v4, coll.count, 56);
PROF_AT(v4, coll.root, 64);
PROF_AT(v4, coll.datatype, 72);
PROF_AT(v4, coll.channels, 80);
PROF_AT(v4, coll.warps, 81);
PROF_AT(v4, coll.algo, 88);
PROF_AT(v4, coll.proto, 96);
PROF_AT(v4, p2p.func, 24);
PROF_AT(v4, p2p.buff, 32);
PROF_AT(v4, p2p.datatype, 40);
PROF_AT(v4, p2p.count, 48);
PROF_AT(v4, p2p.peer, 56);
PROF_AT(v4, p2p.channels, 60);
PROF_AT(v4, kernel_ch.channel, 24);
PROF_AT(v4, kernel_ch.timer_ns, 32);

PROF_AT(v5, type, 0);
PROF_AT(v5, parent, 8);
PROF_AT(v5, rank, 16);
PROF_AT(v5, coll.base.seq, 24);
PROF_AT(v5, coll.base.count, 56);
PROF_AT(v5, coll.base.channels, 80);
PROF_AT(v5, coll.base.proto, 96);
PROF_AT(v5, coll.parent_group, 104);
PROF_AT(v5, p2p.base.func, 24);
PROF_AT(v5, p2p.base.channels, 60);
PROF_AT(v5, p2p.parent_group, 64);
PROF_AT(v5, kernel_ch.channel, 24);
PROF_AT(v5, kernel_ch.timer_ns, 32);
PROF_AT(v5, group_api.captured, 24);
PROF_AT(v5, group_api.depth, 28);
PROF_AT(v5, coll_api.func, 24);
PROF_AT(v5, coll_api.count, 32);
PROF_AT(v5, coll_api.datatype, 40);
PROF_AT(v5, coll_api.root, 48);
PROF_AT(v5, coll_api.stream, 56);
PROF_AT(v5, coll_api.captured, 64);
PROF_AT(v5, p2p_api.func, 24);
PROF_AT(v5, p2p_api.count, 32);
PROF_AT(v5, p2p_api.datatype, 40);
PROF_AT(v5, p2p_api.stream, 48);
PROF_AT(v5, p2p_api.captured, 56);
PROF_AT(v5, kernel_launch.stream, 24);

PROF_AT(v7, type, 0);
PROF_AT(v7, parent, 8);
PROF_AT(v7, rank, 16);
PROF_AT(v7, coll.base.base.seq, 24);
PROF_AT(v7, coll.base.base.proto, 96);
PROF_AT(v7, coll.base.parent_group, 104);
PROF_AT(v7, coll.kernel_variant, 112);
PROF_AT(v7, coll.symmetric, 120);
PROF_AT(v7, coll.user_tag, 128);
PROF_AT(v7, p2p.base.base.func, 24);
PROF_AT(v7, p2p.base.parent_group, 64);
PROF_AT(v7, p2p.user_tag, 72);
PROF_AT(v7, kernel_ch.channel, 24);
PROF_AT(v7, kernel_ch.timer_ns, 32);
PROF_AT(v7, group_api.depth, 28);
PROF_AT(v7, coll_api.base.stream, 56);
PROF_AT(v7, coll_api.base.captured, 64);
PROF_AT(v7, coll_api.user_tag, 72);
PROF_AT(v7, p2p_api.base.stream, 48);
PROF_AT(v7, p2p_api.base.captured, 56);
PROF_AT(v7, p2p_api.user_tag, 64);
PROF_AT(v7, kernel_launch.stream, 24);
PROF_AT(v7, kernel_phase.channel, 24);
PROF_AT(v7, kernel_phase.phase, 25);
PROF_AT(v7, kernel_phase.name, 32);
PROF_AT(v7, kernel_phase.timer_ns, 40);

#undef PROF_AT

#endif
