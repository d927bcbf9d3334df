/* SPDX-License-Identifier: Apache-2.0 */
/* comm.h - a communicator: some of the ranks, connected as a ring. */
#ifndef STANDIN_COMM_H
#define STANDIN_COMM_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "link.h"
#include "op.h"
#include "options.h"
#include "rendezvous.h"

struct oplog;

struct comm {
	enum comm_kind kind;
	char name[32];
	uint64_t id;
	int n_ranks, rank, n_nodes;
	int next, prev; /* ranks in the communicator */
	int global_rank, next_global, prev_global;
	struct link link;
	uint64_t seq[FUNCS]; /* of the next operation */

	/* profiler.c */
	bool profiled;
	void *context;

	/* progress.c */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct op *pending;
	bool stopping;
	const struct oplog *log;
};

/* Fills comm with this rank's communicator of that kind. */
void comm_describe(struct comm *comm, enum comm_kind kind, const struct world *world);

/* Connects the rings of these communicators. All ranks call it at the same time. */
void comm_connect(struct comm *comms, int n, struct world *world, const struct options *opt);

void comm_disconnect(struct comm *comm);

#endif
