/* SPDX-License-Identifier: Apache-2.0 */
/* graph.h - CUDA graphs: while one is captured, kernels and calls of the host go there instead of
 * to the GPU. One at a time, and every stream is captured. */
#ifndef NCCL_GRAPH_H
#define NCCL_GRAPH_H

#include <stddef.h>

/* For the ranks: */
void played_capture_begin(void);
void played_capture_end(void);
/* Puts all that was captured behind what is queued. */
void played_graph_launch(void);
/* Frees it, when the GPU is idle, with what NCCL gave it. */
void played_graph_destroy(void);

/* As gpu_launch() and gpu_call(), or into the graph. */
void graph_launch(const void *args, size_t bytes);
void graph_call(void (*function)(void *), void *data);

#endif
