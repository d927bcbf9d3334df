/* SPDX-License-Identifier: Apache-2.0 */
/* json/comms.h - what lines say of their communicator, rendered once, for as long as lines of it
 * may come.
 *
 * Communicators are added by the threads that make them, and looked up by the JSON thread alone; no
 * lock is between them. A record of the box serves many communicators in turn, so the generation
 * belongs to the name.
 */
#ifndef NCCL_INSPECTOR_JSON_COMMS_H
#define NCCL_INSPECTOR_JSON_COMMS_H

#include "box/box.h"
#include "json/line.h"

struct jsoncomms {
	_Atomic(struct json_comm *) incoming; /* newest first */
	_Atomic unsigned waiting;             /* how many, about */
	struct json_comm *known[BOX_COMMS];   /* newest first; the JSON thread's */
};

/* Takes `comm` over (NULL: does nothing). One with a name takes the place of the one without of the
 * same record and generation. If too many wait for a thread that is stuck it is forgotten, and its
 * lines will be dropped. Any thread. */
void jsoncomms_add(struct jsoncomms *comms, struct json_comm *comm);

/* Returns NULL for a communicator that is not known (any more), or has no name yet. Valid until
 * jsoncomms_trim. By the JSON thread. */
const struct json_comm *jsoncomms_find(struct jsoncomms *comms, unsigned comm, uint32_t generation);

/* Keeps the latest two of each record. By the JSON thread, when no operation waits. */
void jsoncomms_trim(struct jsoncomms *comms);

#endif
