/* SPDX-License-Identifier: Apache-2.0 */
/* inspector.h - the one inspector of the process: set up by the first communicator, idle after the
 * last. */
#ifndef NCCL_INSPECTOR_INSPECTOR_H
#define NCCL_INSPECTOR_INSPECTOR_H

#include "hot/hosttime.h"
#include "hot/state.h"
#include "nccl/abi.h"
#include "net/proxy.h"
#include "upkeep/comms.h"

/* What NCCL says when it makes a communicator. */
struct inspector_comm {
	unsigned api;
	struct comm_fields fields; /* without gpu */
	abi_logger logger;
	void *caller; /* an address in libnccl */
};

/* A communicator comes: writes its context and NCCL's activation mask. Never fails: if nothing can
 * be measured the context is NULL and the mask 0, because NCCL takes an error for a reason to
 * unload the library, more than once. Any thread. */
void inspector_init(const struct inspector_comm *comm, void **context, int *mask);

/* The first event of a communicator has named it (v1 to v3): after track_name has returned true. */
void inspector_named(const void *context);

/* A communicator goes; any context. After the last one of a libnccl it waits at most 100 ms for the
 * background threads. Any thread. */
void inspector_finalize(void *context);

/* How long the host's threads are inside NCCL; off unless the configuration asks for it. */
extern struct hosttime inspector_hosttime;

/* The hot path's state; inactive before the first inspector_init and in a forked child. */
extern struct track inspector_track;
/* Network detail; off before the first inspector_init. */
extern struct net inspector_net;

#endif
