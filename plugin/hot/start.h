/* SPDX-License-Identifier: Apache-2.0 */
/* hot/start.h - operations as NCCL announces them.
 *
 * All functions take any context and any handle. They are called by the threads that call NCCL, and
 * by CUDA's when it replays a graph. The quick ways for what is like an earlier operation:
 * hot/coll.h, hot/send.h.
 */
#ifndef NCCL_INSPECTOR_HOT_START_H
#define NCCL_INSPECTOR_HOT_START_H

#include "hot/state.h"
#include "nccl/abi.h"
#include "nccl/event.h"

/* A Coll or P2p of any version. Returns its handle; NULL: it gets no time. */
void *track_operation(struct track *track, void *context, const struct event *event);

/* A collective that copy engines run: it is counted, without a time. NCCL's count is that of one
 * peer where each has its part; the bytes are those of all, as of a group of Sends and Recvs
 * (hot/groups.h). */
void track_copy_engine(struct track *track, void *context, const struct abi_ce_coll *ce);

/* Those bytes; 0 for a context that is not ours. */
uint64_t track_copy_engine_bytes(const struct track *track, const void *context,
                                 const struct abi_ce_coll *ce);

/* v1 to v3 tell id, name and rank of the communicator with each operation. Returns true for the one
 * that named it. */
bool track_name(struct track *track, void *context, uint64_t id, const char *name, int rank);

/* What v7 says besides of an operation that has just begun, for the traces: only while there are
 * some. `kernel_variant`: NULL for none. */
void track_note(struct track *track, void *operation, uint64_t user_tag,
                const char *kernel_variant);

/* NCCL's stop of a Coll or P2p: a time of the traces. */
void track_enqueued(struct track *track, void *operation);

#endif
