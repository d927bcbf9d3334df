/* SPDX-License-Identifier: Apache-2.0 */
/* box/identity.h - what the box's header tells of the process and its GPUs. */
#ifndef NCCL_INSPECTOR_BOX_IDENTITY_H
#define NCCL_INSPECTOR_BOX_IDENTITY_H

#include "box/box.h"
#include "config.h"

/* Once, in a new box. `caller`: an address in libnccl. */
void identity_fill(struct box_header *header, const struct config *config, unsigned api, void *caller);

/* Index of the calling thread's GPU in the header, a new entry if need be; BOX_GPUS when all are others'. */
uint32_t identity_find_gpu(struct box_header *header);

#endif
