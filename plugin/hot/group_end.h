/* SPDX-License-Identifier: Apache-2.0 */
/* hot/group_end.h - the end of a group of Sends and Recvs: it becomes one more operation
 * (hot/groups.h). */
#ifndef NCCL_INSPECTOR_HOT_GROUP_END_H
#define NCCL_INSPECTOR_HOT_GROUP_END_H

#include "hot/state.h"

/* A member of a group is over, measured (`timed`) or without a time. Does nothing for an operation
 * without a group. The caller has the communicator to itself. */
void track_member_over(struct track *track, struct box_comm *comm, struct box_op *op, bool timed);

/* The call of a group has returned, or its plan is told; `bits`: of its handle. Any thread. */
void track_group_over(struct track *track, uint64_t bits);

/* The members without a slot of the group with that token are over (groups_slotless_over). False:
 * another thread has the communicator to itself just now, and the sweep will do it. */
bool track_slotless_over(struct track *track, uint64_t token, bool timed);

#endif
