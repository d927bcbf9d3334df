/* SPDX-License-Identifier: Apache-2.0 */
/* nccl/abi.h - NCCL's profiler plugin interface v1 to v7 (NCCL 2.23 to 2.32), in our own
 * declarations.
 *
 * Every member that we read has its offset asserted; they are facts of the released libraries, the
 * same on x86-64 and aarch64. What lies between has no meaning here. NCCL's structures are valid
 * during a call only.
 */
#ifndef NCCL_INSPECTOR_NCCL_ABI_H
#define NCCL_INSPECTOR_NCCL_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Event types; also the bits of the activation mask. */
enum abi_event {
	ABI_GROUP = 0x1,
	ABI_COLL = 0x2,
	ABI_P2P = 0x4,
	ABI_PROXY_OP = 0x8,
	ABI_PROXY_STEP = 0x10,
	ABI_KERNEL_CH = 0x40,      /* v3 */
	ABI_NET_PLUGIN = 0x80,     /* v3 */
	ABI_GROUP_API = 0x100,     /* v5 */
	ABI_COLL_API = 0x200,      /* v5 */
	ABI_P2P_API = 0x400,       /* v5 */
	ABI_KERNEL_LAUNCH = 0x800, /* v5 */
	ABI_CE_COLL = 0x1000,      /* v6 */
	ABI_KERNEL_PHASE = 0x8000, /* v7 */
};

/* What comes many times an operation. */
#define ABI_DETAIL                                                                                 \
	(ABI_PROXY_OP | ABI_PROXY_STEP | ABI_NET_PLUGIN | ABI_KERNEL_CH | ABI_KERNEL_PHASE)

enum abi_state {
	ABI_STATE_SEND_GPU_WAIT = 8,
	ABI_STATE_SEND_WAIT = 9,
	ABI_STATE_RECV_WAIT = 10,
	ABI_STATE_RECV_FLUSH_WAIT = 11,
	ABI_STATE_RECV_GPU_WAIT = 12,
	ABI_STATE_SEND_PEER_WAIT = 20,    /* v4 */
	ABI_STATE_KERNEL_CH_STOP = 22,    /* v4: carries the GPU clock */
	ABI_STATE_GROUP_END_BEGINS = 24,  /* v5: of a GroupApi */
	ABI_STATE_KERNEL_PHASE_STOP = 31, /* v7: too */
};

enum { ABI_MAX_CHANNELS = 64 };
enum abi_phase { ABI_PHASE_SYNC, ABI_PHASE_COMPUTE, ABI_PHASE_FINAL_SYNC };

enum abi_log_level { ABI_LOG_WARN = 2, ABI_LOG_INFO = 3 };
enum { ABI_LOG_INIT = 1 }; /* subsystem */

typedef void (*abi_logger)(int level, unsigned long subsystem, const char *file, int line,
                           const char *format, ...);

/* The bodies of v4 to v7: later versions only added members at the end. */
struct abi_coll {
	uint64_t sequence;
	const char *func;
	const void *send_buffer;
	void *recv_buffer;
	size_t count;
	int root;
	const char *datatype;
	uint8_t channels;
	uint8_t warps;
	const char *algo;
	const char *proto;
};

struct abi_p2p {
	const char *func;
	void *buffer;
	const char *datatype;
	size_t count;
	int peer;
	uint8_t channels;
};

struct abi_proxy_op { /* all versions */
	int32_t pid;
	uint8_t channel;
	int peer;
	int steps;
	int chunk_bytes;
	int is_send;
};

struct abi_kernel_ch { /* v3: without the clock */
	uint8_t channel;
	uint64_t gpu_ns;
};

struct abi_net_plugin {   /* v3 */
	int64_t id;       /* the network's kind, and above that the version of what it tells */
	const void *data; /* of that kind and version, valid during the call */
};

/* The two networks that NCCL has itself: kind << 16 | version. Both only tell if NCCL was built
 * with NET_PROFILER=1. */
enum abi_net_id { ABI_NET_IB_V1 = 1 << 16 | 1, ABI_NET_SOCKET_V1 = 2 << 16 | 1 };
enum { ABI_NET_IB_QP = 1 }; /* abi_net_ib.type */

struct abi_ib_qp {
	/* Index into the adapters of the connection, not NCCL's number of the adapter. */
	int device;
	uint64_t wr_id;
	int opcode; /* of a send only */
	int number;
	uint64_t length; /* of a send only: of a receive it is left from an earlier one */
};

struct abi_net_ib {
	uint8_t type;
	struct abi_ib_qp qp;
};

struct abi_group_api {
	bool captured;
	int depth;
};

struct abi_coll_api {
	const char *func;
	size_t count;
	const char *datatype;
	int root;
	void *stream;
	bool captured;
};

struct abi_p2p_api {
	const char *func;
	size_t count;
	const char *datatype;
	void *stream;
	bool captured;
};

struct abi_ce_coll {
	uint64_t sequence;
	const char *func;
	const void *send_buffer;
	void *recv_buffer;
	size_t count;
	int root;
	const char *datatype;
};

struct abi_kernel_phase {
	uint8_t channel;
	uint8_t phase;
	const char *name;
	uint64_t gpu_ns;
};

struct abi_ce_coll_v7 {
	struct abi_ce_coll v6;
	const char *sync_strategy;
	bool sync_in_batch;
	uint32_t batch_bytes, batches, ce_sequence;
	void *stream;
	uint64_t user_tag;
};

struct abi_coll_v5 {
	struct abi_coll coll;
	void *parent_group;
};

struct abi_coll_v7 {
	struct abi_coll_v5 v5;
	const char *kernel_variant;
	bool is_symmetric;
	uint64_t user_tag;
};

struct abi_p2p_v5 {
	struct abi_p2p p2p;
	void *parent_group;
};

struct abi_p2p_v7 {
	struct abi_p2p p2p;
	void *parent_group;
	uint64_t user_tag;
};

union abi_body {
	struct abi_coll coll;
	struct abi_p2p p2p;
	struct abi_proxy_op proxy_op;
	struct abi_net_plugin net_plugin;
	struct abi_kernel_ch kernel_ch;
};

union abi_body_v5 {
	union abi_body common;
	struct abi_coll_v5 coll_v5;
	struct abi_p2p_v5 p2p_v5;
	struct abi_group_api group_api;
	struct abi_p2p_api p2p_api;
	struct abi_coll_api coll_api;
	struct abi_ce_coll ce_coll; /* v6 */
};

struct abi_descriptor_v4 {
	uint8_t type;
	void *parent;
	int rank;
	union abi_body body;
};

struct abi_descriptor_v5 { /* and v6 */
	uint64_t type;
	void *parent;
	int rank;
	union abi_body_v5 body;
};

struct abi_descriptor_v7 {
	uint64_t type;
	void *parent;
	int rank;
	union {
		union abi_body_v5 body;
		struct abi_coll_v7 coll_v7;
		struct abi_p2p_v7 p2p_v7;
		struct abi_ce_coll_v7 ce_coll_v7;
		struct abi_kernel_phase kernel_phase;
	};
};

/* v1 to v3 tell the communicator with each operation. */
struct abi_coll_v1 {
	const char *comm_name;
	uint64_t comm_hash;
	uint64_t sequence;
	uint8_t func;
	const void *send_buffer;
	void *recv_buffer;
	size_t count;
	int root;
	uint8_t datatype;
	uint32_t op;
	size_t traffic_bytes;
	uint8_t channels; /* at most */
	uint8_t warps;
	uint8_t algo;
	uint8_t proto;
	int is_collnet;
	int is_nvls;
};

struct abi_p2p_v1 {
	const char *comm_name;
	uint64_t comm_hash;
	uint8_t func;
	void *buffer;
	uint8_t datatype;
	size_t count;
	int peer;
};

struct abi_descriptor_v1 {
	uint8_t type;
	void *parent;
	int rank;
	union {
		struct abi_coll_v1 coll;
		struct abi_p2p_v1 p2p;
	};
};

struct abi_coll_v2 {
	const char *comm_name;
	uint64_t comm_hash;
	uint64_t sequence;
	const char *func;
	const void *send_buffer;
	void *recv_buffer;
	size_t count;
	int root;
	const char *datatype;
	size_t traffic_bytes;
	uint8_t channels; /* at most */
	uint8_t warps;
	const char *algo;
	const char *proto;
};

struct abi_p2p_v2 { /* and v3 */
	const char *comm_name;
	uint64_t comm_hash;
	const char *func;
	void *buffer;
	const char *datatype;
	size_t count;
	int peer;
};

struct abi_descriptor_v2 {
	uint8_t type;
	void *parent;
	int rank;
	union {
		struct abi_coll_v2 coll;
		struct abi_p2p_v2 p2p;
	};
};

struct abi_coll_v3 {
	const char *comm_name;
	uint64_t comm_hash;
	uint64_t sequence;
	const char *func;
	const void *send_buffer;
	void *recv_buffer;
	size_t count;
	int root;
	const char *datatype;
	uint8_t channels; /* at most */
	uint8_t warps;
	const char *algo;
	const char *proto;
};

struct abi_descriptor_v3 {
	uint8_t type;
	void *parent;
	int rank;
	union {
		struct abi_coll_v3 coll;
		struct abi_p2p_v2 p2p;
		struct abi_kernel_ch kernel_ch;
	};
};

union abi_state_args {
	uint64_t gpu_ns;    /* v4 and later: KernelCh and KernelPhase stop */
	size_t transferred; /* ProxyStep, v4 and later */
	uint64_t reserved_v1[2];
};

#define ABI_TABLE(version, descriptor, init_type)                                                  \
	struct abi_table_v##version {                                                              \
		const char *name;                                                                  \
		init_type init;                                                                    \
		int (*start_event)(void *context, void **handle, struct descriptor *event);        \
		int (*stop_event)(void *handle);                                                   \
		int (*record_event_state)(void *handle, int state, union abi_state_args *args);    \
		int (*finalize)(void *context);                                                    \
	}

typedef int (*abi_init_v1)(void **context, int *mask);
typedef int (*abi_init_v4)(void **context, int *mask, const char *comm_name, uint64_t comm_hash,
                           int n_nodes, int nranks, int rank, abi_logger logger);
typedef int (*abi_init_v5)(void **context, uint64_t comm_id, int *mask, const char *comm_name,
                           int n_nodes, int nranks, int rank, abi_logger logger);

ABI_TABLE(1, abi_descriptor_v1, abi_init_v1);
ABI_TABLE(2, abi_descriptor_v2, abi_init_v1);
ABI_TABLE(3, abi_descriptor_v3, abi_init_v1);
ABI_TABLE(4, abi_descriptor_v4, abi_init_v4);
ABI_TABLE(5, abi_descriptor_v5, abi_init_v5);
ABI_TABLE(7, abi_descriptor_v7, abi_init_v5);

#define ABI_AT(of, member, offset)                                                                 \
	_Static_assert(offsetof(struct of, member) == (offset), #of "." #member)
#define ABI_SIZE(of, bytes) _Static_assert(sizeof(struct of) == (bytes), #of)
#define ABI_HEAD(of, first)                                                                        \
	ABI_AT(of, type, 0);                                                                       \
	ABI_AT(of, parent, 8);                                                                     \
	ABI_AT(of, rank, 16);                                                                      \
	ABI_AT(of, first, 24)

ABI_HEAD(abi_descriptor_v1, coll);
ABI_SIZE(abi_descriptor_v1, 120);
ABI_AT(abi_descriptor_v1, coll.comm_name, 24);
ABI_AT(abi_descriptor_v1, coll.comm_hash, 32);
ABI_AT(abi_descriptor_v1, coll.sequence, 40);
ABI_AT(abi_descriptor_v1, coll.func, 48);
ABI_AT(abi_descriptor_v1, coll.send_buffer, 56);
ABI_AT(abi_descriptor_v1, coll.recv_buffer, 64);
ABI_AT(abi_descriptor_v1, coll.count, 72);
ABI_AT(abi_descriptor_v1, coll.root, 80);
ABI_AT(abi_descriptor_v1, coll.datatype, 84);
ABI_AT(abi_descriptor_v1, coll.op, 88);
ABI_AT(abi_descriptor_v1, coll.traffic_bytes, 96);
ABI_AT(abi_descriptor_v1, coll.channels, 104);
ABI_AT(abi_descriptor_v1, coll.warps, 105);
ABI_AT(abi_descriptor_v1, coll.algo, 106);
ABI_AT(abi_descriptor_v1, coll.proto, 107);
ABI_AT(abi_descriptor_v1, coll.is_collnet, 108);
ABI_AT(abi_descriptor_v1, coll.is_nvls, 112);
ABI_AT(abi_descriptor_v1, p2p.comm_name, 24);
ABI_AT(abi_descriptor_v1, p2p.comm_hash, 32);
ABI_AT(abi_descriptor_v1, p2p.func, 40);
ABI_AT(abi_descriptor_v1, p2p.buffer, 48);
ABI_AT(abi_descriptor_v1, p2p.datatype, 56);
ABI_AT(abi_descriptor_v1, p2p.count, 64);
ABI_AT(abi_descriptor_v1, p2p.peer, 72);

ABI_HEAD(abi_descriptor_v2, coll);
ABI_SIZE(abi_descriptor_v2, 128);
ABI_AT(abi_descriptor_v2, coll.comm_name, 24);
ABI_AT(abi_descriptor_v2, coll.comm_hash, 32);
ABI_AT(abi_descriptor_v2, coll.sequence, 40);
ABI_AT(abi_descriptor_v2, coll.func, 48);
ABI_AT(abi_descriptor_v2, coll.count, 72);
ABI_AT(abi_descriptor_v2, coll.root, 80);
ABI_AT(abi_descriptor_v2, coll.datatype, 88);
ABI_AT(abi_descriptor_v2, coll.traffic_bytes, 96);
ABI_AT(abi_descriptor_v2, coll.channels, 104);
ABI_AT(abi_descriptor_v2, coll.warps, 105);
ABI_AT(abi_descriptor_v2, coll.algo, 112);
ABI_AT(abi_descriptor_v2, coll.proto, 120);
ABI_AT(abi_descriptor_v2, p2p.func, 40);
ABI_AT(abi_descriptor_v2, p2p.buffer, 48);
ABI_AT(abi_descriptor_v2, p2p.datatype, 56);
ABI_AT(abi_descriptor_v2, p2p.count, 64);
ABI_AT(abi_descriptor_v2, p2p.peer, 72);

ABI_HEAD(abi_descriptor_v3, coll);
ABI_SIZE(abi_descriptor_v3, 120);
ABI_AT(abi_descriptor_v3, coll.comm_hash, 32);
ABI_AT(abi_descriptor_v3, coll.sequence, 40);
ABI_AT(abi_descriptor_v3, coll.func, 48);
ABI_AT(abi_descriptor_v3, coll.count, 72);
ABI_AT(abi_descriptor_v3, coll.root, 80);
ABI_AT(abi_descriptor_v3, coll.datatype, 88);
ABI_AT(abi_descriptor_v3, coll.channels, 96);
ABI_AT(abi_descriptor_v3, coll.warps, 97);
ABI_AT(abi_descriptor_v3, coll.algo, 104);
ABI_AT(abi_descriptor_v3, coll.proto, 112);
ABI_AT(abi_descriptor_v3, p2p.peer, 72);
ABI_AT(abi_descriptor_v3, kernel_ch.channel, 24);

ABI_HEAD(abi_descriptor_v4, body);
ABI_SIZE(abi_descriptor_v4, 104);
ABI_HEAD(abi_descriptor_v5, body);
ABI_SIZE(abi_descriptor_v5, 112);
ABI_HEAD(abi_descriptor_v7, body);
ABI_SIZE(abi_descriptor_v7, 136);

ABI_AT(abi_descriptor_v4, body.coll.sequence, 24);
ABI_AT(abi_descriptor_v4, body.coll.func, 32);
ABI_AT(abi_descriptor_v4, body.coll.send_buffer, 40);
ABI_AT(abi_descriptor_v4, body.coll.recv_buffer, 48);
ABI_AT(abi_descriptor_v4, body.coll.count, 56);
ABI_AT(abi_descriptor_v4, body.coll.root, 64);
ABI_AT(abi_descriptor_v4, body.coll.datatype, 72);
ABI_AT(abi_descriptor_v4, body.coll.channels, 80);
ABI_AT(abi_descriptor_v4, body.coll.warps, 81);
ABI_AT(abi_descriptor_v4, body.coll.algo, 88);
ABI_AT(abi_descriptor_v4, body.coll.proto, 96);
ABI_AT(abi_descriptor_v4, body.p2p.func, 24);
ABI_AT(abi_descriptor_v4, body.p2p.buffer, 32);
ABI_AT(abi_descriptor_v4, body.p2p.datatype, 40);
ABI_AT(abi_descriptor_v4, body.p2p.count, 48);
ABI_AT(abi_descriptor_v4, body.p2p.peer, 56);
ABI_AT(abi_descriptor_v4, body.p2p.channels, 60);
ABI_AT(abi_descriptor_v4, body.proxy_op.pid, 24);
ABI_AT(abi_descriptor_v4, body.proxy_op.channel, 28);
ABI_AT(abi_descriptor_v4, body.proxy_op.peer, 32);
ABI_AT(abi_descriptor_v4, body.proxy_op.steps, 36);
ABI_AT(abi_descriptor_v4, body.proxy_op.chunk_bytes, 40);
ABI_AT(abi_descriptor_v4, body.proxy_op.is_send, 44);
ABI_AT(abi_descriptor_v4, body.net_plugin.id, 24);
ABI_AT(abi_descriptor_v4, body.net_plugin.data, 32);
ABI_AT(abi_descriptor_v4, body.kernel_ch.channel, 24);
ABI_AT(abi_descriptor_v4, body.kernel_ch.gpu_ns, 32);

ABI_AT(abi_descriptor_v5, body.common, 24);
ABI_AT(abi_descriptor_v5, body.coll_v5.parent_group, 104);
ABI_AT(abi_descriptor_v5, body.p2p_v5.parent_group, 64);
ABI_AT(abi_descriptor_v5, body.group_api.captured, 24);
ABI_AT(abi_descriptor_v5, body.group_api.depth, 28);
ABI_AT(abi_descriptor_v5, body.coll_api.func, 24);
ABI_AT(abi_descriptor_v5, body.coll_api.count, 32);
ABI_AT(abi_descriptor_v5, body.coll_api.datatype, 40);
ABI_AT(abi_descriptor_v5, body.coll_api.root, 48);
ABI_AT(abi_descriptor_v5, body.coll_api.stream, 56);
ABI_AT(abi_descriptor_v5, body.coll_api.captured, 64);
ABI_AT(abi_descriptor_v5, body.p2p_api.captured, 56);
ABI_AT(abi_descriptor_v5, body.ce_coll.sequence, 24);
ABI_AT(abi_descriptor_v5, body.ce_coll.func, 32);
ABI_AT(abi_descriptor_v5, body.ce_coll.count, 56);
ABI_AT(abi_descriptor_v5, body.ce_coll.root, 64);
ABI_AT(abi_descriptor_v5, body.ce_coll.datatype, 72);

ABI_AT(abi_descriptor_v7, coll_v7.kernel_variant, 112);
ABI_AT(abi_descriptor_v7, coll_v7.is_symmetric, 120);
ABI_AT(abi_descriptor_v7, coll_v7.user_tag, 128);
ABI_AT(abi_descriptor_v7, p2p_v7.parent_group, 64);
ABI_AT(abi_descriptor_v7, p2p_v7.user_tag, 72);
ABI_AT(abi_descriptor_v7, ce_coll_v7.user_tag, 112);
ABI_AT(abi_descriptor_v7, kernel_phase.channel, 24);
ABI_AT(abi_descriptor_v7, kernel_phase.phase, 25);
ABI_AT(abi_descriptor_v7, kernel_phase.name, 32);
ABI_AT(abi_descriptor_v7, kernel_phase.gpu_ns, 40);

ABI_AT(abi_net_ib, type, 0);
ABI_AT(abi_net_ib, qp.device, 8);
ABI_AT(abi_net_ib, qp.wr_id, 16);
ABI_AT(abi_net_ib, qp.opcode, 24);
ABI_AT(abi_net_ib, qp.number, 28);
ABI_AT(abi_net_ib, qp.length, 32);
ABI_SIZE(abi_net_ib, 40);

ABI_SIZE(abi_table_v1, 48);
ABI_SIZE(abi_table_v4, 48);
ABI_SIZE(abi_table_v5, 48);
ABI_SIZE(abi_table_v7, 48);

#endif
