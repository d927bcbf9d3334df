/* SPDX-License-Identifier: Apache-2.0 */
/* profiler.h - NCCL's side of the profiler interface: one plugin for the process, a context for
 * each communicator, events in the plugin's version. Without a plugin all of it does nothing. */
#ifndef STANDIN_PROFILER_H
#define STANDIN_PROFILER_H

#include <stdint.h>

#include "comm.h"
#include "profiler_abi.h"

/* Bits that make NCCL start an event: its own and those of everything below it. */
#define BITS_BELOW_TASK                                                                            \
	(PROF_PROXY_OP | PROF_PROXY_STEP | PROF_KERNEL_CH | PROF_NET_PLUGIN | PROF_KERNEL_PHASE)
#define BITS_COLL (PROF_COLL | BITS_BELOW_TASK)
#define BITS_P2P (PROF_P2P | BITS_BELOW_TASK)
#define BITS_GROUP (PROF_GROUP | BITS_COLL | BITS_P2P)
#define BITS_COLL_API (PROF_COLL_API | BITS_COLL)
#define BITS_P2P_API (PROF_P2P_API | BITS_P2P)
#define BITS_GROUP_API                                                                             \
	(PROF_GROUP_API | PROF_KERNEL_LAUNCH | BITS_GROUP | BITS_COLL_API | BITS_P2P_API)

/* An event before it is put into the descriptor of a version. */
struct event {
	enum prof_event type;
	void *parent;
	void *group;                   /* Coll, P2p */
	const struct op *op;           /* Coll, P2p, CollApi, P2pApi */
	const struct channel *channel; /* KernelCh, KernelPhase */
	int phase;                     /* KernelPhase: 0 to 2 */
	uint64_t timer_ns;             /* KernelCh, KernelPhase */
	int depth;                     /* GroupApi */
};

/* Highest version offered. To be called before anything else here. */
void prof_offer(int version);

/* The first one loads the plugin, the last finalize unloads it. */
void prof_init(struct comm *comm);
void prof_finalize(struct comm *comm);

/* The plugin's version as a number, 0 without one. */
int prof_version(void);

/* The process-wide activation mask of this moment. */
int prof_mask(void);

/* Returns the plugin's handle. */
void *prof_start(const struct comm *comm, const struct event *event);

/* With a NULL handle these do nothing, as in NCCL. */
void prof_stop(void *handle);
void prof_record(void *handle, enum prof_state state, uint64_t timer_ns);

#endif
