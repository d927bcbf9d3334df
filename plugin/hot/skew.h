/* SPDX-License-Identifier: Apache-2.0 */
/* hot/skew.h - how much later than the first one each channel of a communicator ends: a slow rail
 * shows as late channels.
 *
 * Looked at for one collective in TRACK_CALL_SAMPLE of a communicator, timed by the GPU's clock.
 * While one is looked at, a bit of box_op.handle is set, so that its kernel events take the slow
 * way (track_kernel_stop_slowly) and all others are as quick as before. A communicator has one such
 * operation at a time: a later one takes its place.
 */
#ifndef NCCL_INSPECTOR_HOT_SKEW_H
#define NCCL_INSPECTOR_HOT_SKEW_H

#include "hot/state.h"

/* From now on that operation of the communicator is looked at. Before NCCL has its handle. By the
 * thread that calls NCCL. */
void skew_begin(struct track *track, unsigned comm, void *operation);

/* A channel of an operation ended; `kernel`: the bits of its handle. Does nothing for one that is
 * not looked at. By the thread that reports its kernels. */
void skew_stop(struct track *track, const struct box_op *op, uint64_t kernel, uint64_t gpu_ns);

/* All its channels have ended. Before the slot is freed. By the same thread. */
void skew_over(struct track *track, const struct box_op *op, uint64_t kernel);

/* A communicator begins in that record. Under the inspector's lock. */
void skew_new_comm(struct track *track, unsigned comm);

#endif
