/* SPDX-License-Identifier: Apache-2.0 */
/* hot/labels.h - operations by what else NCCL says of them: the application's tag, the kernel of a
 * symmetric collective, the root of a Broadcast or Reduce.
 *
 * Each kind of label has a few places in the box, and one for whatever comes when they are taken.
 * An operation counts when it is told, its time when it is over. The parts of a group run at the
 * same time: they count without theirs.
 */
#ifndef NCCL_INSPECTOR_HOT_LABELS_H
#define NCCL_INSPECTOR_HOT_LABELS_H

#include "hot/state.h"

struct label_fields {
	enum box_label_kind kind;
	uint32_t comm;    /* of a root: its communicator; else BOX_LABEL_ALL_COMMS */
	uint8_t func;     /* of a root: its function; else BOX_FUNC_UNKNOWN */
	uint64_t value;   /* tag or root */
	const char *text; /* of a kernel; else NULL */
};

/* Whether operations of that function have a root that NCCL tells. */
static inline bool labels_is_rooted(unsigned func)
{
	return func == BOX_FUNC_BROADCAST || func == BOX_FUNC_REDUCE;
}

/* Whether two places are both in use and of one label. */
bool labels_are_same(const struct box_label *one, const struct box_label *other);

/* The next three are called by the threads that call NCCL. */

/* An operation with a root was told; `operation`: its handle, NULL if it has no slot. */
void labels_root(struct track *track, unsigned comm, uint8_t func, int root, uint64_t bytes,
                 const void *operation);

/* A call with a root was told, for which no operation may follow. */
void labels_called(struct track *track, unsigned comm, uint8_t func, int root, uint64_t bytes);

/* What v7 tells besides. A tag of 0 means that there is none, and NCCL keeps those with the highest
 * bit for itself. `kernel`: that of a symmetric collective, or NULL. Any context; of a communicator
 * that is gone, or while nothing is followed, nothing counts. */
void labels_told(struct track *track, const void *context, uint64_t user_tag, const char *kernel,
                 uint64_t bytes, const void *operation);

/* An operation is over. Before its slot is freed. The caller has the communicator to itself. */
void labels_over(struct track *track, const struct box_op *op, uint64_t time_ns);

/* From now on the roots of communicator record `from` are those of record `to`. As keys_fold. */
void labels_fold(struct box *box, unsigned from, unsigned to);

#endif
