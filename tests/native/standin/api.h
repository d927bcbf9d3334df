/* SPDX-License-Identifier: Apache-2.0 */
/* api.h - NCCL's calls, as the application thread makes them. They return when the work is
 * enqueued; gpu_sync() waits for it. */
#ifndef STANDIN_API_H
#define STANDIN_API_H

#include "comm.h"

/* One ncclAllReduce and so on, or Send and Recv around the ring in one group. `bytes` is the
 * size of the larger buffer; the shares of AllGather and ReduceScatter are a part of it. */
void api_run(struct comm *comm, enum op_kind kind, size_t bytes, const struct options *opt);

#endif
