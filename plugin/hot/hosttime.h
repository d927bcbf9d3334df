/* SPDX-License-Identifier: Apache-2.0 */
/* hot/hosttime.h - how long the application's threads are inside NCCL, and in its kernel launches.
 *
 * Only where the setting `host_time` asks for it, since it reads a clock four times for each call;
 * NCCL 2.28 and later (v5) tells what it needs. A call counts from the begin of ncclGroupEnd(), or
 * of a call outside any group, until that returns: what NCCL's host code takes, with the launch in
 * it, and with whatever blocks it. A launch is of one kernel. A group of several communicators
 * counts for the one that was called first. Sums are of the process, in the box's header; NCCL lets
 * one thread at a time call it for a communicator.
 */
#ifndef NCCL_INSPECTOR_HOT_HOSTTIME_H
#define NCCL_INSPECTOR_HOT_HOSTTIME_H

#include "hot/state.h"

struct hosttime {
	struct track *track; /* NULL: nothing is set up */
	/* Of each communicator, when its call and its launch began; 0: none does. */
	_Atomic uint64_t call_tick[BOX_LIVE_COMMS], launch_tick[BOX_LIVE_COMMS];
};

/* The bits of the activation mask for it; 0 if it is not asked for. */
int hosttime_events(const struct hosttime *host, unsigned api);

/* The ncclGroupEnd() of a GroupApi begins, and returns. `group`: any handle. By the thread that
 * calls NCCL. */
void hosttime_call_begins(struct hosttime *host, const void *group);
void hosttime_call_over(struct hosttime *host, const void *group);

/* A kernel's launch begins, and is over. Any context, any handle. The first returns a handle for
 * the second; NULL: it is not followed. By the thread that calls NCCL. */
void *hosttime_launch_begins(struct hosttime *host, const void *context);
void hosttime_launch_over(struct hosttime *host, const void *launch);

#endif
