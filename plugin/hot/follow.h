/* SPDX-License-Identifier: Apache-2.0 */
/* hot/follow.h - what is followed: set-up, silence, and communicators that come.
 *
 * The caller holds the inspector's lock, but for track_silence.
 */
#ifndef NCCL_INSPECTOR_HOT_FOLLOW_H
#define NCCL_INSPECTOR_HOT_FOLLOW_H

#include "hot/state.h"

/* Prepares `track` for a new box and follows everything from now on. `track` is all zero, or was of
 * an earlier box. `ns_per_tick_q32`: clock_calibrate(). */
void track_init(struct track *track, struct box *box, uint64_t ns_per_tick_q32,
                const struct track_options *options);

/* Follows nothing from now on: this is a forked child. */
void track_silence(struct track *track);

/* Whether to follow new operations; those in flight are followed to their end. NCCL freezes its
 * activation mask into a captured graph, so whatever the mask is set to later, each replay tells of
 * its operations. */
void track_follow(struct track *track, bool follows);

/* Follows the CPU times of all events, too. Before the first event. `traces`: trace_open(BOX_OPS),
 * or NULL for none. */
void track_trace(struct track *track, struct trace_op *traces);

/* A communicator with that context begins in that record of the box. Its end: track_end_comm. */
void track_new_comm(struct track *track, unsigned comm, void *context);

#endif
