/* SPDX-License-Identifier: Apache-2.0 */
/* ring.h - the work of a kernel: real data around the ring, in the order of NCCL's rings. */
#ifndef STANDIN_RING_H
#define STANDIN_RING_H

#include <stddef.h>

#include "op.h"

/* Memory of the GPU thread; grows to what the largest operation needs. */
struct ring_memory {
	float *work;    /* the operation's buffer */
	float *landing; /* what has just come in */
	size_t floats;
};

/* Puts this rank's data there. */
void ring_fill(struct ring_memory *memory, const struct kernel *kernel);

/* Moves them, and stamps met_ns and stop_ns of the channels. Ends the process on an error. */
void ring_run(struct ring_memory *memory, const struct kernel *kernel);

/* Ends the process when a number of the result is wrong. */
void ring_verify(const struct ring_memory *memory, const struct kernel *kernel);

#endif
