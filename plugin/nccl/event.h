/* SPDX-License-Identifier: Apache-2.0 */
/* nccl/event.h - an operation as NCCL announces it, whatever NCCL's version. Its pointers are valid
 * during the call only. */
#ifndef NCCL_INSPECTOR_NCCL_EVENT_H
#define NCCL_INSPECTOR_NCCL_EVENT_H

#include <stdbool.h>
#include <stdint.h>

#define EVENT_NO_PEER (-1)
#define EVENT_CHANNELS_UNKNOWN 255 /* v1 to v3 do not say for Send and Recv */

struct event {
	const char *func, *datatype, *algo, *proto; /* NULL: not known */
	uint64_t count;                             /* elements */
	uint64_t sequence; /* per communicator and function; 0 for Send and Recv */
	void *parent;      /* Send, Recv: what its call, or its group, got from us */
	void *plan;        /* and what the kernel's plan got in which it is; NULL before v5 */
	int peer;          /* EVENT_NO_PEER: a collective */
	int root;          /* of a Broadcast or Reduce */
	bool symmetric;    /* run by a symmetric-memory kernel (v7 tells) */
	uint8_t channels;  /* that NCCL announces; at most (v1 to v3) or exactly so many come */
};

#endif
