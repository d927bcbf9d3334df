/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.h - one thread that plays the GPU: it runs the kernels of its one stream in order. */
#ifndef STANDIN_GPU_H
#define STANDIN_GPU_H

#include "op.h"

void gpu_start(void);

/* Takes the kernel over. */
void gpu_launch(struct kernel *kernel);

/* So long no later kernel begins; the caller goes on at once. */
void gpu_compute(uint64_t ms);

/* Waits until all that was launched is done. */
void gpu_sync(void);

/* Ends the thread, which must be idle. */
void gpu_stop(void);

#endif
