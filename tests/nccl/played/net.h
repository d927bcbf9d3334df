/* SPDX-License-Identifier: Apache-2.0 */
/* net.h - the GPU's side of connections over the network: it always has data to send, and room
 * for what it receives. */
#ifndef NCCL_NET_H
#define NCCL_NET_H

#include <stdint.h>

struct kernel_comm;

/* From now on the connections of communicators whose kernels run are served. `fifo_bytes`: the
 * size of ncclConnFifo, 24 before NCCL 2.31, then 32. */
void played_net_begin(unsigned fifo_bytes);
/* No more; returns how many pieces NCCL has sent, which are the steps that it told of. */
uint64_t played_net_end(void);

/* A kernel of this communicator runs. */
void net_serve(const struct kernel_comm *comm);

#endif
