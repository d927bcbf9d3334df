/* SPDX-License-Identifier: Apache-2.0 */
/* tables.h - the tables that NCCL looks for: each version's structures to what the hot path takes,
 * nothing more.
 *
 * After init the functions have nothing to say but success. Every start writes the handle, NULL
 * too: NCCL does not clear it before, and stops whatever it finds. v4 to v7 are in tables.c, v1 to
 * v3 in tables_old.c.
 */
#ifndef NCCL_INSPECTOR_TABLES_H
#define NCCL_INSPECTOR_TABLES_H

#include <stdint.h>

#include "hot/state.h"
#include "inspector.h"
#include "nccl/abi.h"

enum { NCCL_SUCCESS = 0 };

#define TRACK (&inspector_track)
#define NET (&inspector_net)
#define HOST (&inspector_hosttime)

#define NAME "slurm-nccl-inspector"
#define EXPORT __attribute__((visibility("default")))

/* A communicator comes; `caller`: an address in libnccl. Writes its context and NCCL's activation
 * mask. Gives NCCL_SUCCESS. */
int tables_init(unsigned api, void **context, uint64_t comm_id, int *mask, const char *name,
                int nnodes, int nranks, int rank, abi_logger logger, void *caller);

/* A communicator goes; any context. Gives NCCL_SUCCESS. */
int tables_finalize(void *context);

/* An event has ended; any handle. Gives NCCL_SUCCESS. */
TRACK_HOT int tables_stop_event(void *handle);

#endif
