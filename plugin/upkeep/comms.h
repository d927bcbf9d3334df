/* SPDX-License-Identifier: Apache-2.0 */
/* upkeep/comms.h - the communicator records of the box. Callers hold the inspector's lock. */
#ifndef NCCL_INSPECTOR_UPKEEP_COMMS_H
#define NCCL_INSPECTOR_UPKEEP_COMMS_H

#include "hot/state.h"

struct comm_fields {
	uint64_t id;
	const char *name; /* NULL or any bytes: the application's */
	int nranks, nnodes, rank;
	uint32_t gpu; /* index of box_header.gpu */
};

/* Records a communicator and returns its context; handle_context_beyond() if BOX_LIVE_COMMS are
 * alive. If no record is free, the one of the communicator that was destroyed first is folded. */
void *comms_add(struct track *track, const struct comm_fields *fields);

/* Marks the communicator of a context as destroyed; its figures stay. Any context. */
void comms_remove(struct track *track, const void *context);

#endif
