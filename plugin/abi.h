/* SPDX-License-Identifier: Apache-2.0 */
/* abi.h - NCCL's profiler plugin interface v4 to v7 (NCCL 2.27 to 2.32), in our own declarations.
 *
 * Only what we read has a name. Every offset and size is asserted; they are facts of the released
 * libraries, the same on x86-64 and aarch64. NCCL's structures are valid during a call only.
 */
#ifndef NCCL_INSPECTOR_ABI_H
#define NCCL_INSPECTOR_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Event types; also the bits of the activation mask. */
enum abi_event {
	ABI_GROUP = 0x1,
	ABI_COLL = 0x2,
	ABI_P2P = 0x4,
	ABI_KERNEL_CH = 0x40,
};

enum { ABI_STATE_KERNEL_CH_STOP = 22 }; /* carries the GPU clock */
enum { ABI_MAX_CHANNELS = 64 };

enum abi_log_level { ABI_LOG_WARN = 2, ABI_LOG_INFO = 3 };
enum { ABI_LOG_INIT = 1 }; /* subsystem */

typedef void (*abi_logger)(int level, unsigned long subsystem, const char *file, int line,
			   const char *format, ...);

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

struct abi_kernel_ch {
	uint8_t channel;
	uint64_t gpu_ns;
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

union abi_body {
	struct abi_coll coll;
	struct abi_p2p p2p;
	struct abi_kernel_ch kernel_ch;
};

struct abi_descriptor_v4 {
	uint8_t type;
	void *parent;
	int rank;
	union abi_body body;
};

/* v5 and v6 have the same size; v6 only has more kinds of body. */
struct abi_descriptor_v5 {
	uint64_t type;
	void *parent;
	int rank;
	union {
		union abi_body body;
		struct abi_coll_v5 coll_v5;
	};
};

struct abi_descriptor_v7 {
	uint64_t type;
	void *parent;
	int rank;
	union {
		union abi_body body;
		struct abi_coll_v7 coll_v7;
	};
};

union abi_state_args {
	uint64_t gpu_ns;
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

typedef int (*abi_init_v4)(void **context, int *mask, const char *comm_name, uint64_t comm_hash,
			   int n_nodes, int nranks, int rank, abi_logger logger);
typedef int (*abi_init_v5)(void **context, uint64_t comm_id, int *mask, const char *comm_name,
			   int n_nodes, int nranks, int rank, abi_logger logger);

ABI_TABLE(4, abi_descriptor_v4, abi_init_v4);
ABI_TABLE(5, abi_descriptor_v5, abi_init_v5);
ABI_TABLE(7, abi_descriptor_v7, abi_init_v5);

#define ABI_AT(type, member, offset)                                                               \
	_Static_assert(offsetof(struct type, member) == (offset), #type "." #member)
#define ABI_SIZE(type, bytes) _Static_assert(sizeof(struct type) == (bytes), #type)

ABI_AT(abi_descriptor_v4, type, 0);
ABI_AT(abi_descriptor_v4, parent, 8);
ABI_AT(abi_descriptor_v4, rank, 16);
ABI_AT(abi_descriptor_v4, body, 24);
ABI_SIZE(abi_descriptor_v4, 104);
ABI_AT(abi_descriptor_v5, parent, 8);
ABI_AT(abi_descriptor_v5, rank, 16);
ABI_AT(abi_descriptor_v5, body, 24);
ABI_AT(abi_descriptor_v5, coll_v5.parent_group, 104);
ABI_SIZE(abi_descriptor_v5, 112);
ABI_AT(abi_descriptor_v7, body, 24);
ABI_AT(abi_descriptor_v7, coll_v7.kernel_variant, 112);
ABI_AT(abi_descriptor_v7, coll_v7.is_symmetric, 120);
ABI_AT(abi_descriptor_v7, coll_v7.user_tag, 128);
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
ABI_AT(abi_descriptor_v4, body.kernel_ch.channel, 24);
ABI_AT(abi_descriptor_v4, body.kernel_ch.gpu_ns, 32);
ABI_SIZE(abi_table_v4, 48);
ABI_SIZE(abi_table_v5, 48);
ABI_SIZE(abi_table_v7, 48);

#endif
