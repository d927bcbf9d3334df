/* SPDX-License-Identifier: Apache-2.0 */
/* hot/coll.h - collectives of v4 and later: the quick way for one that is like an earlier one.
 *
 * Both functions take any context, write the handle (NULL: nothing is to be followed) and give 0.
 * By the threads that call NCCL.
 */
#ifndef NCCL_INSPECTOR_HOT_COLL_H
#define NCCL_INSPECTOR_HOT_COLL_H

#include "hot/state.h"
#include "nccl/abi.h"

/* A collective. */
TRACK_HOT int track_coll(struct track *track, void *context, const struct abi_coll *coll,
                         void **handle);

/* One that a symmetric-memory kernel runs (v7); `call`: the handle of its call. */
int track_symmetric_coll(struct track *track, void *context, void *call,
                         const struct abi_coll *coll, void **handle);

#endif
