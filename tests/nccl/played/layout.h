/* SPDX-License-Identifier: Apache-2.0 */
/* layout.h - what NCCL's kernels find in the memory of the device.
 *
 * As the debug information in libnccl.so.2 has it, the same from 2.27.3 to 2.32.3 but for the
 * entries of a connection's fifo (net.h). Only what is read or written here has a name. */
#ifndef NCCL_LAYOUT_H
#define NCCL_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#define CHANNELS 64
#define RING 64

struct stamp {
	volatile uint64_t counter, timestamp;
};

/* ncclDevProfiler, one for each channel. */
struct ring {
	struct stamp data[RING];
};

/* ncclConnInfo */
struct connection {
	char buffers[48];
	volatile uint64_t *tail, *head;
	char more[32];
	void *fifo; /* ncclConnFifo[8], for connections over the network */
	char last[48];
};
_Static_assert(offsetof(struct connection, fifo) == 96, "ncclConnInfo.connFifo");
_Static_assert(sizeof(struct connection) == 152, "ncclConnInfo");

/* ncclDevChannelPeer */
struct channel_peer {
	struct connection send[2], receive[2];
};

/* ncclDevChannel */
struct channel {
	struct channel_peer **peers;
	char topology[360];
};
_Static_assert(sizeof(struct channel) == 368, "ncclDevChannel");

/* ncclKernelComm, called ncclDevComm before 2.28. */
struct kernel_comm {
	int rank, n_ranks;
	char sizes[48];
	struct channel *channels;
	int *local_ranks;
	struct ring *started, *completed;
};
_Static_assert(offsetof(struct kernel_comm, channels) == 56, "ncclKernelComm.channels");
_Static_assert(offsetof(struct kernel_comm, started) == 72, "ncclKernelComm.workStarted");

/* ncclDevWorkBatch: bits 0 to 13 of the flags are nextJump, bit 14 is nextExtends. */
struct batch {
	uint32_t flags, offset_base;
	uint64_t offset_bitset;
};

/* ncclDevKernelArgs and what follows it. */
struct kernel_args {
	struct kernel_comm *comm;
	uint64_t channel_mask;
	uint64_t work[2];
	struct batch batches[];
};

#endif
