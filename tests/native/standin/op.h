/* SPDX-License-Identifier: Apache-2.0 */
/* op.h - one operation of a communicator, as the profiler will hear of it. */
#ifndef STANDIN_OP_H
#define STANDIN_OP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "options.h"

enum func { FUNC_ALLREDUCE, FUNC_ALLGATHER, FUNC_REDUCESCATTER, FUNC_SEND, FUNC_RECV, FUNCS };

struct comm;

struct channel {
	uint8_t id;        /* NCCL's absolute number */
	uint64_t start_ns; /* GPU clock */
	uint64_t met_ns;   /* when the peers were there */
	uint64_t stop_ns;
	void *handle; /* the profiler's, of KernelCh */
};

struct op {
	struct comm *comm;
	enum func func;
	uint64_t seq;
	size_t count;     /* elements of four bytes, as the application says it */
	int peer;         /* Send and Recv, else -1 */
	const void *send; /* what the profiler is shown; nothing is read or written there */
	void *recv;
	int mask;     /* activation mask when it was enqueued */
	void *handle; /* the profiler's, of Coll or P2p */
	int n_channels;
	struct channel channels[MAX_CHANNELS];
	/* Under the communicator's lock. */
	bool gpu_started, gpu_finished, starts_told;
	struct op *next;
};

static inline bool func_is_p2p(enum func func)
{
	return func == FUNC_SEND || func == FUNC_RECV;
}

/* NCCL's word. */
const char *func_name(enum func func);

/* An operation that one launch runs alone, or Recv and Send together. */
struct kernel {
	struct comm *comm;
	struct op *ops[2];
	int n_ops;
	uint64_t salt;       /* makes the data of each operation different */
	bool corrupt;        /* this rank's data are to be wrong */
	bool deaf;           /* a neighbour that has gone is waited for */
	bool stuck;          /* its peers call something else: it never ends */
	uint64_t compute_ms; /* no operation, but what the GPU computes before the next */
	struct kernel *next;
};

#endif
