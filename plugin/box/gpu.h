/* SPDX-License-Identifier: Apache-2.0 */
/* box/gpu.h - which physical GPU the calling thread has current, from the driver library that NCCL has loaded. */
#ifndef NCCL_INSPECTOR_BOX_GPU_H
#define NCCL_INSPECTOR_BOX_GPU_H

#include "box/box.h"

/* Fills everything but `used`. Label: "GPU<minor>", else "GPU-" and the first eight digits of the UUID, else
 * "unknown". Without a driver: empty uuid, minor -1. Never loads a library. */
void gpu_identify(struct box_gpu *gpu);

#endif
