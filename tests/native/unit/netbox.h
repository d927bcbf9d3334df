/* SPDX-License-Identifier: Apache-2.0 */
/* netbox.h - for the tests of network detail: a box, a communicator, and a clock that stands still
 * until moved. */
#ifndef NCCL_INSPECTOR_NETBOX_H
#define NCCL_INSPECTOR_NETBOX_H

#include "base/clock.h"
#include "hot/complete.h"
#include "hot/follow.h"
#include "hot/start.h"
#include "net/proxy.h"
#include "net/proxy_round.h"
#include "net/queues.h"
#include "upkeep/comms.h"
#include "tap.h"

#define MS 1000000ull
#define SECOND 1000000000ull
#define PID 4711

static _Atomic uint64_t clock_now = SECOND;

/* Before the C library's: without clock_calibrate() a tick of the plugin's clock is a nanosecond of
 * this. */
int clock_gettime(clockid_t id, struct timespec *ts)
{
	uint64_t now = atomic_load(&clock_now);

	(void)id;
	ts->tv_sec = (time_t)(now / SECOND);
	ts->tv_nsec = (long)(now % SECOND);
	return 0;
}

static struct box box;
static struct track track;
static struct net net;
static void *comm;

static inline void pass(uint64_t ns)
{
	atomic_fetch_add(&clock_now, ns);
}

static void begin_as(enum config_net mode, unsigned api)
{
	int error;

	box_open(&box, -1, "0", &error);
	box.header->pid = PID;
	track_init(&track, &box, 1ull << 32, &(struct track_options){ .timing = BOX_TIMING_GPU });
	comm = comms_add(&track, &(struct comm_fields){
				     .id = 7, .name = "c", .nranks = 8, .nnodes = 2, .rank = 3 });
	ok(!net_init(&net, &track, mode, api), "the memory is there");
	net_begin(&net);
}

static void begin(void)
{
	begin_as(CONFIG_NET_ON, 7);
}

static inline void *op_of(void *context, int peer, bool is_send)
{
	return net_op_start(&net, context, NULL,
	                    &(struct abi_proxy_op){ .pid = PID, .peer = peer, .is_send = is_send });
}

static inline void *send_to(int peer)
{
	return op_of(comm, peer, true);
}

static void tell(void *step, int state)
{
	net_step_state(&net, step, state, NULL);
}

static inline void tell_bytes(void *step, int state, size_t bytes)
{
	net_step_state(&net, step, state, &(union abi_state_args){ .transferred = bytes });
}

static void round_now(void)
{
	net_round(&net, atomic_load(&clock_now), 1);
}

/* The entry of a peer; the first one of several. */
static inline const struct box_net *entry(int peer, bool is_send)
{
	static const struct box_net none;

	for (unsigned i = 0; i < BOX_NETS; i++)
		if (box.nets[i].used == 1 && box.nets[i].peer == peer &&
		    (box.nets[i].is_send != 0) == is_send)
			return &box.nets[i];
	return &none;
}

static inline bool waited(const struct box_net *entry, uint64_t gpu_ms, uint64_t peer_ms,
                          uint64_t wire_ms, uint64_t flush_ms)
{
	return entry->ns[BOX_NET_GPU] == gpu_ms * MS && entry->ns[BOX_NET_PEER] == peer_ms * MS &&
	       entry->ns[BOX_NET_WIRE] == wire_ms * MS && entry->ns[BOX_NET_FLUSH] == flush_ms * MS;
}

static inline uint64_t all_ns(const struct box_net *entry)
{
	uint64_t sum = 0;

	for (unsigned state = 0; state < BOX_NET_STATES; state++)
		sum += entry->ns[state];
	return sum;
}

static uint64_t stale(void)
{
	return box.header->dropped[BOX_DROP_STALE];
}

static inline unsigned slots_in_use(void)
{
	unsigned used = 0;

	for (unsigned i = 0; i < NET_OPS; i++)
		used += track_in_use(net.ops[i].generation);
	return used;
}

#endif
