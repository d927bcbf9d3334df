/* SPDX-License-Identifier: Apache-2.0 */
/* hot/complete.h - the end of an operation: exactly once, by one thread at a time for a
 * communicator, and only with times that can be true. */
#ifndef NCCL_INSPECTOR_HOT_COMPLETE_H
#define NCCL_INSPECTOR_HOT_COMPLETE_H

#include "hot/state.h"

/* The thread of the kernels has told the last channel of an operation. Gives 0. */
TRACK_HOT int track_last_kernel(struct track *track, struct box_op *op, uint32_t generation);

/* What becomes of the slot. One that rests becomes free in the sweep's next round (slots_rest). One
 * that is handed on is free at once, although the thread of the kernels may have found the handle
 * good just now: what that yet stores goes when its next operation begins
 * (track_kernel_start_slowly). */
enum track_slot { TRACK_SLOT_FREE, TRACK_SLOT_RESTS, TRACK_SLOT_HANDED_ON };

/* For the sweep and hot/reclaim.c. Each ends one use (`generation`) of a slot, exactly once: as an
 * operation that is over, as one that was given up, as one that gets no time. False: that use is
 * over already, or another thread has the communicator to itself just now. track_complete may also
 * hold it back (hot/late.h), and does so until others decide; track_settle never. */
bool track_complete(struct track *track, struct box_op *op, uint32_t generation,
                    enum track_slot after);
bool track_settle(struct track *track, struct box_op *op, uint32_t generation,
                  enum track_slot after);
bool track_expire(struct track *track, struct box_op *op, uint32_t generation,
                  enum track_slot after);
bool track_end_untimed(struct track *track, struct box_op *op, uint32_t generation,
                       enum track_slot after);

/* All operations of a communicator that are held back are over, and believed. The caller has it to
 * itself. */
void track_settle_comm(struct track *track, struct box_comm *comm);

#endif
