/* SPDX-License-Identifier: Apache-2.0 */
/* box/gpu.h - which physical GPU the calling thread has current, from the driver library that NCCL
 * has loaded. */
#ifndef NCCL_INSPECTOR_BOX_GPU_H
#define NCCL_INSPECTOR_BOX_GPU_H

#include "box/box.h"

/* Fills in everything but `used`. The label is "GPU<minor>", else "GPU-" and the first eight digits
 * of the UUID, else "unknown". Without a driver the uuid is empty and minor is -1. Never loads a
 * library. Under the inspector's lock. */
void gpu_identify(struct box_gpu *gpu);

#endif
