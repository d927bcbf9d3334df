/* SPDX-License-Identifier: Apache-2.0 */
/* slots.h - the pool of box_op for track.c. No lock: a slot belongs to who turns its state from free to filling. */
#ifndef NCCL_INSPECTOR_SLOTS_H
#define NCCL_INSPECTOR_SLOTS_H

#include "track.h"

/* A slot for a communicator, being filled, and its generation then; NULL when all are in use. The pool gives up what
 * never got a kernel event and was overtaken by many later operations before it is out of slots. */
struct box_op *slots_take(struct track *track, struct track_comm *app, uint32_t *generation);

/* The caller has ended this use. */
void slots_free(struct track *track, struct box_op *op, uint32_t generation);

/* Whether an operation has no kernel event and later ones of its communicator are over: it will get none (a lost
 * start, a part without work). */
bool slots_overtaken(const struct track *track, const struct box_op *op);

#endif
