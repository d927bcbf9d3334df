/* SPDX-License-Identifier: Apache-2.0 */
/* inspector.h - the one inspector of the process: set up by the first communicator, idle after the last. */
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

/* Context and activation mask for a communicator. Never fails: where nothing can be measured the context is NULL and
 * the mask 0, because NCCL takes an error for a reason to unload the library, more than once. */
void inspector_init(const struct inspector_comm *comm, void **context, int *mask);

/* The first event of a communicator has told its names (v1 to v3). */
void inspector_named(const void *context);

/* Takes any context. After the last one waits at most 100 ms for the writer thread. */
void inspector_finalize(void *context);

/* What the hot path takes of the host's time; nothing unless the configuration asks for it. */
extern struct hosttime inspector_hosttime;

/* The hot path's state; inactive before the first inspector_init and in a forked child. */
extern struct track inspector_track;
extern struct net inspector_net; /* off before that */

#endif
