/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous.h - how the tasks find each other, and what the application says to itself outside
 * of NCCL. Rank 0 writes its address into a shared directory; the others connect to it, and
 * get the list of all in return. These connections stay, for the barrier. */
#ifndef STANDIN_RENDEZVOUS_H
#define STANDIN_RENDEZVOUS_H

#include <stdbool.h>
#include <stdint.h>

#include "options.h"

struct peer {
	char node[64];
	int32_t local_id;
	uint32_t port;
};

struct world {
	int rank, n_ranks;
	int listener;
	uint64_t nonce; /* of this run, from rank 0 */
	struct peer *peers;
	uint64_t timeout_s;
	int *star; /* rank 0: a connection for each rank; others: one, to rank 0 */
	char dir[4096];
	char file[4096 + 16];
};

/* Fills world from SLURM_* and the other tasks. Ends the process when they do not come. */
void world_join(struct world *world, const struct options *opt);

/* Returns when every rank has called it. */
void world_barrier(struct world *world);

/* Rank 0 decides, the others are told, and rank 0 waits for nobody. */
bool world_agree(struct world *world, bool go);

void world_leave(struct world *world);

#endif
