/* SPDX-License-Identifier: Apache-2.0 */
/* progress.h - the thread that tells the profiler what the GPU did: NCCL's proxy progress thread
 * to 2.30, its profiler thread from 2.31. One for each communicator. */
#ifndef STANDIN_PROGRESS_H
#define STANDIN_PROGRESS_H

#include "comm.h"
#include "oplog.h"

void progress_start(struct comm *comm, const struct oplog *log);

/* Tells what is still to tell, then ends. The GPU must be done. */
void progress_stop(struct comm *comm);

/* From the application: takes the operation over. It may be gone when this returns. */
void progress_add(struct op *op);

/* From the GPU thread: the channels have start_ns, resp. all times and will not be touched. */
void progress_gpu_started(struct op *op);
void progress_gpu_finished(struct op *op);

#endif
