/* SPDX-License-Identifier: Apache-2.0 */
/* box/bandwidth.h - bus bandwidth and size classes (arithmetic only).
 *
 * The factors are those of nccl-tests (doc/PERFORMANCE.md);
 * python/nccl_inspector/model/bandwidth.py has the same rules and a test compares the two.
 */
#ifndef NCCL_INSPECTOR_BOX_BANDWIDTH_H
#define NCCL_INSPECTOR_BOX_BANDWIDTH_H

#include <stddef.h>
#include <stdint.h>

#include "base/log2.h"

/* Bus bytes for one message byte as the caller counts it (one rank's share for AllGather and
 * ReduceScatter); 0 where no bus bandwidth is defined. */
double bandwidth_bus_factor(unsigned func, int nranks);

/* The size class of a message: floor(log2(bytes)); 0 for 0 and 1. */
static inline unsigned bandwidth_size_class(uint64_t bytes)
{
	return bytes ? log2_floor(bytes) : 0;
}

/* Writes the name of a size class, such as "64-128KB" for class 16: [2^16, 2^17) bytes, both in the
 * unit of the lower bound. */
void bandwidth_size_label(unsigned size_class, char *label, size_t room);

#endif
