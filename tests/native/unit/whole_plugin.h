/* SPDX-License-Identifier: Apache-2.0 */
/* whole_plugin.h - for the tests of the plugin as NCCL sees it: a communicator of two ranks, and
 * one operation of it from call to end. */
#ifndef NCCL_INSPECTOR_WHOLE_PLUGIN_H
#define NCCL_INSPECTOR_WHOLE_PLUGIN_H

#include "base/clock.h"
#include "hot/kernels.h"
#include "hot/start.h"
#include "inspector.h"
#include "tap.h"

#define WANTED (ABI_COLL | ABI_P2P | ABI_KERNEL_CH | ABI_CE_COLL)

static int mask; /* NCCL's, one for the process */

__attribute__((unused)) static int mask_now(void)
{
	return __atomic_load_n(&mask, __ATOMIC_RELAXED);
}

/* Another mask is that of a second NCCL in the process. */
static void *make_with(int *its_mask, uint64_t id)
{
	void *context;

	inspector_init(
	    &(struct inspector_comm){ .api = 7, .fields = { .id = id, .nranks = 2, .name = "c" } },
	    &context, its_mask);
	return context;
}

static void *make(uint64_t id)
{
	return make_with(&mask, id);
}

/* An AllReduce of 1 MiB on one channel, which took a microsecond. */
__attribute__((unused)) static void operation(void *context)
{
	const struct event event = { .func = "AllReduce",
	                             .datatype = "ncclInt8",
	                             .algo = "RING",
	                             .proto = "LL",
	                             .count = 1 << 20,
	                             .peer = EVENT_NO_PEER,
	                             .channels = 1 };
	void *handle = track_operation(&inspector_track, context, &event);
	uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);

	track_kernel_stop(&inspector_track, track_kernel_start(&inspector_track, handle, 0, now_ns),
	                  now_ns + 1000);
}

#endif
