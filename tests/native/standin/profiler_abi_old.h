/* SPDX-License-Identifier: Apache-2.0 */
/* profiler_abi_old.h - NCCL's profiler interface v1 to v3 (2.23 to 2.26). */
#ifndef STANDIN_PROFILER_ABI_OLD_H
#define STANDIN_PROFILER_ABI_OLD_H

#include "profiler_bodies.h"

struct prof_coll_v1 {
	const char *name;
	uint64_t comm_hash;
	uint64_t seq;
	uint8_t func;
	const void *send;
	void *recv;
	size_t count;
	int root;
	uint8_t datatype;
	uint32_t op;
	size_t traffic_bytes;
	uint8_t max_channels;
	uint8_t warps;
	uint8_t algo;
	uint8_t proto;
	int is_collnet;
	int is_nvls;
};

struct prof_coll_v2 {
	const char *name;
	uint64_t comm_hash;
	uint64_t seq;
	const char *func;
	const void *send;
	void *recv;
	size_t count;
	int root;
	const char *datatype;
	size_t traffic_bytes;
	uint8_t max_channels;
	uint8_t warps;
	const char *algo;
	const char *proto;
};

struct prof_coll_v3 {
	const char *name;
	uint64_t comm_hash;
	uint64_t seq;
	const char *func;
	const void *send;
	void *recv;
	size_t count;
	int root;
	const char *datatype;
	uint8_t max_channels;
	uint8_t warps;
	const char *algo;
	const char *proto;
};

struct prof_p2p_v1 {
	const char *name;
	uint64_t comm_hash;
	uint8_t func;
	void *buff;
	uint8_t datatype;
	size_t count;
	int peer;
};

struct prof_p2p_v2 { /* and v3 */
	const char *name;
	uint64_t comm_hash;
	const char *func;
	void *buff;
	const char *datatype;
	size_t count;
	int peer;
};

struct prof_kernel_ch_v3 {
	uint8_t channel;
};

struct prof_descr_v1 {
	uint8_t type;
	void *parent;
	int rank;
	union {
		struct prof_coll_v1 coll;
		struct prof_p2p_v1 p2p;
		struct prof_proxy_op proxy_op;
		struct prof_proxy_step proxy_step;
	};
};

struct prof_descr_v2 {
	uint8_t type;
	void *parent;
	int rank;
	union {
		struct prof_coll_v2 coll;
		struct prof_p2p_v2 p2p;
		struct prof_proxy_op proxy_op;
		struct prof_proxy_step proxy_step;
	};
};

struct prof_descr_v3 {
	uint8_t type;
	void *parent;
	int rank;
	union {
		struct prof_coll_v3 coll;
		struct prof_p2p_v2 p2p;
		struct prof_kernel_ch_v3 kernel_ch;
		struct prof_proxy_op proxy_op;
		struct prof_proxy_step proxy_step;
		struct prof_net_plugin net_plugin;
	};
};

union prof_args_old {
	struct {
		size_t trans_size;
		int steps;
	} proxy_op;
	struct {
		int appended_proxy_ops;
	} proxy_ctrl;
};

#define PROF_TABLE_OLD(version)                                                                    \
	struct prof_table_v##version {                                                             \
		const char *name;                                                                  \
		int (*init)(void **context, int *mask);                                            \
		int (*start)(void *context, void **handle, struct prof_descr_v##version *descr);   \
		int (*stop)(void *handle);                                                         \
		int (*record)(void *handle, int state, union prof_args_old *args);                 \
		int (*finalize)(void *context);                                                    \
	}

PROF_TABLE_OLD(1);
PROF_TABLE_OLD(2);
PROF_TABLE_OLD(3);

#undef PROF_TABLE_OLD

#define PROF_AT(version, member, offset)                                                           \
	_Static_assert(offsetof(struct prof_descr_##version, member) == (offset),                  \
	               #version " " #member)

_Static_assert(sizeof(struct prof_descr_v1) == 120, "v1 descriptor");
_Static_assert(sizeof(struct prof_descr_v2) == 128, "v2 descriptor");
_Static_assert(sizeof(struct prof_descr_v3) == 120, "v3 descriptor");
_Static_assert(sizeof(union prof_args_old) == 16, "arguments of a state");
_Static_assert(sizeof(struct prof_table_v1) == 48, "v1 table");
_Static_assert(sizeof(struct prof_table_v2) == 48, "v2 table");
_Static_assert(sizeof(struct prof_table_v3) == 48, "v3 table");

PROF_AT(v1, type, 0);
PROF_AT(v1, parent, 8);
PROF_AT(v1, rank, 16);
PROF_AT(v1, coll.name, 24);
PROF_AT(v1, coll.comm_hash, 32);
PROF_AT(v1, coll.seq, 40);
PROF_AT(v1, coll.func, 48);
PROF_AT(v1, coll.send, 56);
PROF_AT(v1, coll.recv, 64);
PROF_AT(v1, coll.count, 72);
PROF_AT(v1, coll.root, 80);
PROF_AT(v1, coll.datatype, 84);
PROF_AT(v1, coll.op, 88);
PROF_AT(v1, coll.traffic_bytes, 96);
PROF_AT(v1, coll.max_channels, 104);
PROF_AT(v1, coll.warps, 105);
PROF_AT(v1, coll.algo, 106);
PROF_AT(v1, coll.proto, 107);
PROF_AT(v1, coll.is_collnet, 108);
PROF_AT(v1, coll.is_nvls, 112);
PROF_AT(v1, p2p.name, 24);
PROF_AT(v1, p2p.comm_hash, 32);
PROF_AT(v1, p2p.func, 40);
PROF_AT(v1, p2p.buff, 48);
PROF_AT(v1, p2p.datatype, 56);
PROF_AT(v1, p2p.count, 64);
PROF_AT(v1, p2p.peer, 72);
PROF_AT(v1, proxy_op.pid, 24);
PROF_AT(v1, proxy_step.step, 24);

PROF_AT(v2, coll.name, 24);
PROF_AT(v2, coll.comm_hash, 32);
PROF_AT(v2, coll.seq, 40);
PROF_AT(v2, coll.func, 48);
PROF_AT(v2, coll.send, 56);
PROF_AT(v2, coll.recv, 64);
PROF_AT(v2, coll.count, 72);
PROF_AT(v2, coll.root, 80);
PROF_AT(v2, coll.datatype, 88);
PROF_AT(v2, coll.traffic_bytes, 96);
PROF_AT(v2, coll.max_channels, 104);
PROF_AT(v2, coll.warps, 105);
PROF_AT(v2, coll.algo, 112);
PROF_AT(v2, coll.proto, 120);
PROF_AT(v2, p2p.func, 40);
PROF_AT(v2, p2p.buff, 48);
PROF_AT(v2, p2p.datatype, 56);
PROF_AT(v2, p2p.count, 64);
PROF_AT(v2, p2p.peer, 72);

PROF_AT(v3, coll.func, 48);
PROF_AT(v3, coll.count, 72);
PROF_AT(v3, coll.root, 80);
PROF_AT(v3, coll.datatype, 88);
PROF_AT(v3, coll.max_channels, 96);
PROF_AT(v3, coll.warps, 97);
PROF_AT(v3, coll.algo, 104);
PROF_AT(v3, coll.proto, 112);
PROF_AT(v3, p2p.peer, 72);
PROF_AT(v3, kernel_ch.channel, 24);
PROF_AT(v3, net_plugin.id, 24);
PROF_AT(v3, proxy_op.is_send, 44);

#undef PROF_AT

#endif
