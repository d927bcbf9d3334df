/* SPDX-License-Identifier: Apache-2.0 */
/* hotbox.h - for the tests of the hot path: a box, a communicator of eight ranks, and NCCL's
 * calls in short. */
#ifndef NCCL_INSPECTOR_HOTBOX_H
#define NCCL_INSPECTOR_HOTBOX_H

#include <string.h>

#include "base/clock.h"
#include "base/log2.h"
#include "hot/calls.h"
#include "hot/clockmix.h"
#include "hot/coll.h"
#include "hot/complete.h"
#include "hot/follow.h"
#include "hot/kernels.h"
#include "hot/labels.h"
#include "hot/owner.h"
#include "hot/send.h"
#include "hot/slots.h"
#include "hot/start.h"
#include "upkeep/comms.h"
#include "upkeep/sweep.h"
#include "tap.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* no test program needs all of them */

static struct box box;
static struct track track;
static struct sweep sweep;
static void *comm;
static uint64_t gpu_ns; /* a GPU clock that goes on */

static void begin_as(enum box_timing timing)
{
	int error;

	box_open(&box, -1, "0", &error);
	track_init(&track, &box, clock_calibrate(),
	           &(struct track_options){ .p2p = true, .timing = timing });
	memset(&sweep, 0, sizeof(sweep));
	gpu_ns = 1700000000000000000ull;
	comm = comms_add(&track, &(struct comm_fields){
				     .id = 7, .name = "c", .nranks = 8, .nnodes = 2, .rank = 3 });
}

static void begin(void)
{
	begin_as(BOX_TIMING_GPU);
}

static uint64_t ticks_a_second(void)
{
	return (1ull << 32) * 1000000000ull / track.ns_per_tick_q32;
}

static void *start(void *context, unsigned channels, uint64_t count)
{
	return track_operation(&track, context,
	                       &(struct event){ .peer = EVENT_NO_PEER,
	                                        .func = "AllReduce",
	                                        .datatype = "ncclFloat32",
	                                        .algo = "RING",
	                                        .proto = "SIMPLE",
	                                        .count = count,
	                                        .channels = (uint8_t)channels });
}

/* So many Sends and Recvs are called in a group, before any of them is told, as NCCL does it
 * (src/enqueue.cc: p2pTaskAppend; their tasks are told when the group ends). For the parent of
 * each. */
static void *p2p_calls(void *context, void *group, unsigned count)
{
	void *call = NULL;

	while (count--)
		call = track_p2p_call(&track, context, group);
	return call;
}

static void *p2p(void *call, const char *func, int peer, uint64_t bytes)
{
	return track_operation(&track, comm,
	                       &(struct event){ .peer = peer,
	                                        .func = func,
	                                        .datatype = "ncclInt8",
	                                        .count = bytes,
	                                        .parent = call,
	                                        .channels = 1 });
}

static void *kernel(void *parent, unsigned channel, uint64_t ns)
{
	return track_kernel_start(&track, parent, channel, gpu_ns + ns);
}

static void stop(void *channel, uint64_t ns)
{
	track_kernel_stop(&track, channel, gpu_ns + ns);
}

static uint64_t dropped(enum box_drop reason)
{
	return box.header->dropped[reason];
}

static uint64_t enqueued(unsigned index)
{
	sweep_count(&track);
	return box.comms[index].enqueued;
}

static uint64_t completed(void)
{
	return box.comms[0].completed;
}

/* Rounds are played ahead of the machine's clock: what is told after them was called now, not in
 * their future. */
static void round_at(uint64_t tick)
{
	sweep_round(&sweep, &track, tick);
	atomic_store(&track.sweep_tick, clock_ticks());
}

static void whole_operation(uint64_t start_ns, uint64_t stop_ns)
{
	void *op = start(comm, 1, 1024);

	stop(kernel(op, 9, start_ns), stop_ns);
}

/* The key of a function; the first one of several. */
static struct box_key *key_of(unsigned func)
{
	for (unsigned i = 0; i < BOX_KEYS; i++)
		if (box.keys[i].used == 1 && box.keys[i].func == func)
			return &box.keys[i];
	return NULL;
}

#endif
