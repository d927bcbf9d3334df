/* SPDX-License-Identifier: Apache-2.0 */
/* box/identity.h - what the box's header tells of the process and its GPUs. */
#ifndef NCCL_INSPECTOR_BOX_IDENTITY_H
#define NCCL_INSPECTOR_BOX_IDENTITY_H

#include "box/box.h"
#include "config.h"

/* Fills in what does not change while the process lives, in a new box. `caller`: an address in
 * libnccl. Calibrates the clock. Under the inspector's lock. */
void identity_fill(struct box_header *header, const struct config *config, unsigned api,
                   void *caller);

/* Returns the index of the calling thread's GPU in the header, of a new entry if need be; BOX_GPUS:
 * all entries are of other GPUs. Under the inspector's lock. */
uint32_t identity_find_gpu(struct box_header *header);

#endif
