/* SPDX-License-Identifier: Apache-2.0 */
/* script.h - what one rank does, as tests/simulator/script.py writes it: a header, its
 * communicators, its operations, its environment. Little-endian, without padding. Times are ns of
 * true time since the job's start, and SCRIPT_NEVER of what did not happen. */
#ifndef SIMULATOR_SCRIPT_H
#define SIMULATOR_SCRIPT_H

#include <stddef.h>
#include <stdint.h>

#define SCRIPT_MAGIC "NCCLPLAY"
#define SCRIPT_VERSION 1u
#define SCRIPT_NEVER (-1)

/* As job.FUNCS. */
enum script_func {
	SCRIPT_ALLREDUCE,
	SCRIPT_ALLGATHER,
	SCRIPT_REDUCESCATTER,
	SCRIPT_BROADCAST,
	SCRIPT_REDUCE,
	SCRIPT_ALLTOALL,
	SCRIPT_SEND,
	SCRIPT_RECV,
	SCRIPT_FUNCS,
};

/* How the process ended. */
enum script_end {
	SCRIPT_FINALIZED, /* it destroyed its communicators */
	SCRIPT_EXITED,    /* exit() without that */
	SCRIPT_KILLED,
};

#define PACKED __attribute__((packed))

struct PACKED script_head {
	char magic[8];
	uint32_t version, api;
	int64_t real0_ns, mono0_ns; /* struct virtual_world */
	double drift;
	uint64_t gpu0_ns; /* the GPU's clock at true time 0 */
	uint64_t seed;    /* of how late NCCL's thread hears of kernels */
	int64_t end_ns;
	int32_t end, pid, minor, procid;
	uint64_t comms, operations, environment_bytes;
	char host[64];
};

struct PACKED script_comm {
	uint64_t id;
	int32_t nranks, nnodes, rank, reserved;
	int64_t created_ns, destroyed_ns;
	char name[128], algo[24], proto[24];
};

/* As job.OPERATIONS. */
struct PACKED script_op {
	uint16_t comm;
	uint8_t func, channels;
	int32_t group, peer;
	int64_t bytes, call_ns, begin_ns, end_ns;
};

struct script {
	struct script_head head;
	const struct script_comm *comms;
	const struct script_op *operations;
	const char *environment; /* NAME=VALUE, each with its NUL */
};

/* Ends the program with a line on stderr where it is no script; `script` is valid for ever. */
void script_read(struct script *script, const char *path);

#endif
