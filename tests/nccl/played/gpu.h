/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h - a played GPU: one queue for all streams, and kernels that move no data but stamp the
 * profiler's rings as NCCL's kernels do. */
#ifndef NCCL_GPU_H
#define NCCL_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Puts a kernel behind all that is queued; the arguments are copied. */
void gpu_launch(const void *args, size_t bytes);

/* The same for a function of the host. */
void gpu_call(void (*function)(void *), void *data);

/* The number of what was queued last. */
uint64_t gpu_last(void);
/* Whether that and all before it is done. */
bool gpu_is_done(uint64_t number);
void gpu_wait(uint64_t number);

/* For the ranks: from now on a batch of works lasts so long (30,000 ns at first). */
void played_batch_ns(unsigned ns);

/* The memory is free again: a ring that was there is none any more. */
void gpu_forget(const void *memory);

#endif
