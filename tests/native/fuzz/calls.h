/* SPDX-License-Identifier: Apache-2.0 */
/* calls.h - NCCL's calls through the tables of v1 to v7, from words that fit any of them. */
#ifndef NCCL_INSPECTOR_CALLS_H
#define NCCL_INSPECTOR_CALLS_H

#include "nccl/abi.h"

#define CALLS_VERSIONS 7u
#define CALLS_UNWRITTEN                                                                            \
	((void *)(uintptr_t)0x0f0f0f0f0f0f0f0full) /* what a handle holds before a start */

/* Whatever an event may say; each has a part of it. v1 gives numbers for the words. */
struct calls_words {
	const char *func, *datatype, *algo, *proto, *name;
	uint8_t func_number, datatype_number, algo_number, proto_number;
	uint64_t count, sequence, id, gpu_ns;
	int rank, nranks, nnodes, peer;
	uint8_t channels, channel, phase;
	bool symmetric, captured, is_send, foreign;
	int root;
	uint64_t user_tag;
	const char *kernel; /* may be NULL */
	void *plan;         /* of a P2p of v5 and later: what its Group got */
};

/* Context and mask. Aborts unless the library says success. */
void calls_init(unsigned api, void **context, int *mask, const struct calls_words *words);
void calls_finalize(unsigned api, void *context);

/* The event's type as that version tells it: the first four have eight bits. */
uint64_t calls_type(unsigned api, uint64_t type);

/* The handle. Aborts if it was not written, or for anything but success; so do the next two. */
void *calls_start(unsigned api, void *context, uint64_t type, void *parent,
                  const struct calls_words *words);
void calls_stop(unsigned api, void *handle);
void calls_state(unsigned api, void *handle, int state, union abi_state_args *args);

#endif
