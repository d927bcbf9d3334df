/* SPDX-License-Identifier: Apache-2.0 */
/* event.h - our one event, whatever NCCL's version. Pointers are valid during the call only. */
#ifndef NCCL_INSPECTOR_EVENT_H
#define NCCL_INSPECTOR_EVENT_H

#include <stdint.h>

enum event_kind {
	EVENT_OTHER,     /* of no interest: answered with a NULL handle */
	EVENT_GROUP,     /* needs a token on NCCL <= 2.27 */
	EVENT_OPERATION, /* a collective, Send or Recv handed to the GPU */
	EVENT_KERNEL,    /* one channel of an operation began on the GPU */
};

struct event {
	enum event_kind kind;
	int peer;            /* -1: a collective */
	void *parent;        /* handle of the operation, for EVENT_KERNEL */
	const char *func, *datatype, *algo, *proto;
	uint64_t count;      /* elements */
	uint64_t sequence;   /* per communicator and function */
	uint64_t gpu_ns;     /* GPU clock, for EVENT_KERNEL */
	uint8_t channels;    /* that NCCL announces */
	uint8_t channel;     /* absolute number, for EVENT_KERNEL */
};

#endif
