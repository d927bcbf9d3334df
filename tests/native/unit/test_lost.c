/* SPDX-License-Identifier: Apache-2.0 */
/* What NCCL loses, begins and never ends, or tells late: nothing of it may cost the operations that
 * are whole. */
#include "hotbox.h"

static uint64_t now_tick; /* of the rounds */

static void begin_at_once(enum box_timing timing)
{
	begin_as(timing);
	now_tick = clock_ticks();
}

static void rounds(unsigned seconds)
{
	for (unsigned i = 0; i < seconds; i++, now_tick += ticks_a_second())
		sweep_round(&sweep, &track, now_tick);
	atomic_store(&track.sweep_tick,
	             clock_ticks()); /* the rounds' clock is ours, the operations' is not */
}

static void *operation(void *parent, int peer, uint8_t channels)
{
	return track_operation(
	    &track, comm,
	    &(struct event){ .peer = peer,
	                     .func = peer == EVENT_NO_PEER ? "AllReduce" : "Send",
	                     .datatype = "ncclInt8",
	                     .count = 4096,
	                     .parent = parent,
	                     .channels = channels });
}

static void run(void *op, unsigned channels, unsigned stopped)
{
	uint64_t now = track_now_ns(&track);
	void *kernels[64];

	for (unsigned i = 0; i < channels; i++)
		kernels[i] = track_kernel_start(&track, op, i, now);
	for (unsigned i = 0; i < stopped; i++)
		track_kernel_stop(&track, kernels[i], now + 1000);
}

static void test_lost_stops(void)
{
	begin_at_once(BOX_TIMING_GPU);
	for (unsigned i = 0; i < 20 * BOX_OPS; i++) {
		run(operation(NULL, EVENT_NO_PEER, 2), 2, i % 10 ? 2 : 1);
		if (i % 1024 == 0)
			rounds(70);
	}
	ok(!dropped(BOX_DROP_NO_SLOT),
	   "operations whose end is lost never take the room of others (%llu)",
	   (unsigned long long)dropped(BOX_DROP_NO_SLOT));
	ok(box.comms[0].completed == 18 * BOX_OPS, "which are all measured");
}

/* The thread of the kernels has found its handle good, and the writer's thread comes before it
 * stores what it was told. */
static void test_a_start_that_is_late(void)
{
	begin_at_once(BOX_TIMING_GPU);
	struct box_op *op = &box.ops[handle_slot(handle_bits(operation(NULL, EVENT_NO_PEER, 1)))];
	uint32_t generation = op->generation;
	unsigned seconds = 0;

	for (unsigned i = 0; i < 100; i++)
		run(operation(NULL, EVENT_NO_PEER, 1), 1, 1);
	while (op->generation == generation && seconds++ < 10)
		rounds(1);
	ok(box.comms[0].untimed == 1, "what was overtaken is given up");
	owned_or(&op->started_channels, 1ull << 40);
	for (unsigned i = 0; i < 100; i++)
		run(operation(NULL, EVENT_NO_PEER, 1), 1, 1);
	ok(box.comms[0].completed == 200,
	   "a start that comes then is in no other operation (%llu are whole)",
	   (unsigned long long)box.comms[0].completed);
	rounds(1);
	ok(op->generation == (generation & ~BOX_OP_STATE_MASK) + 4 && !op->started_channels,
	   "a round later its slot is free, with nothing in it");
	for (unsigned i = 0; i < 100; i++)
		run(operation(NULL, EVENT_NO_PEER, 1), 1, 1);
	ok(box.comms[0].completed == 300 && op->generation > generation + 4 && enqueued(0) == 301,
	   "and used again");
}

static void test_channels_that_are_not_told(void)
{
	begin_at_once(BOX_TIMING_CPU);
	for (unsigned i = 0; i < 10 * BOX_OPS; i++)
		run(operation(NULL, 5, EVENT_CHANNELS_UNKNOWN), 2, 2);
	rounds(5);
	ok(!dropped(BOX_DROP_NO_SLOT) && box.comms[0].completed == 10 * BOX_OPS,
	   "NCCL 2.26: any number of Sends a second is measured (%llu)",
	   (unsigned long long)box.comms[0].completed);
}

static void test_a_long_first_call(void)
{
	begin_at_once(BOX_TIMING_GPU);
	void *group = track_group_start(&track, comm);

	track_coll_call(&track, comm,
	                &(struct event){ .peer = EVENT_NO_PEER,
	                                 .func = "AllReduce",
	                                 .datatype = "ncclInt8",
	                                 .count = 4096 });
	rounds(30); /* NCCL connects */
	run(operation(NULL, EVENT_NO_PEER, 1), 1, 1);
	track_group_stop(&track, group);
	rounds(5);
	uint64_t untimed = 0;

	for (unsigned i = 0; i < BOX_KEYS; i++)
		untimed += box.keys[i].untimed_ops;
	ok(!untimed && box.comms[0].completed == 1, "a call that takes long is one operation");
}

static unsigned open_groups(void)
{
	unsigned open = 0;

	for (unsigned i = 0; i < GROUPS; i++)
		open += track.groups.group[i].token != 0;
	return open;
}

static void test_groups_out_of_order(void)
{
	begin_at_once(BOX_TIMING_GPU);
	for (unsigned i = 0; i < 3 * GROUPS; i++) {
		void *group = track_old_group_start(&track, comm);
		void *one = operation(group, 5, 1), *two = operation(group, 6, 1);
		void *other =
		    track_old_group_start(&track, comm); /* CUDA's thread replays a graph */

		track_group_stop(&track, other);
		track_group_stop(&track, group);
		run(one, 1, 1);
		run(two, 1, 1);
	}
	ok(!open_groups() && !dropped(BOX_DROP_NO_GROUP), "groups that cross are all ended (%u)",
	   open_groups());
	for (unsigned i = 0; i < GROUPS; i++) {
		void *group = track_group_start(&track, comm);

		run(operation(track_p2p_call(&track, comm, group), 5, 1), 1,
		    1); /* and the call is aborted */
	}
	rounds(3);
	ok(open_groups() <= 1, "so are those whose call never returns (%u)", open_groups());
}

static void test_beyond(void)
{
	begin_at_once(BOX_TIMING_GPU);
	for (unsigned i = 1; i <= BOX_LIVE_COMMS; i++)
		comm =
		    comms_add(&track, &(struct comm_fields){ .id = i, .nranks = 2, .name = "x" });
	void *group = track_old_group_start(&track, comm);

	ok(group && !operation(group, EVENT_NO_PEER, 1) && dropped(BOX_DROP_NO_COMM) == 1,
	   "NCCL 2.27: a communicator beyond 64 is told of, and counted");
	track_group_stop(&track, group);
	ok(!track_old_group_start(&track, NULL), "one that is not measured is not");
}

/* The GPU's clock runs slower than ours: what was the distance long ago is not believed. */
static void test_drifting_clocks(void)
{
	begin_at_once(BOX_TIMING_GPU);
	for (unsigned i = 0; i < 300; i++) {
		void *op = operation(NULL, EVENT_NO_PEER, 1);

		track_kernel_stop(&track, track_kernel_start(&track, op, 0, gpu_ns), gpu_ns + 1000);
		/* Ten minutes, in which it loses 30 ms; ours is moved by moving what we remember.
		 */
		gpu_ns -= i == 150 ? 3000000000u : 30000000u; /* and once a whole day */
		atomic_store(&box.comms[0].clock_since_tick,
		             clock_ticks() - 600 * ticks_a_second());
		atomic_store(&track.sweep_tick, clock_ticks());
	}
	ok(!dropped(BOX_DROP_IMPLAUSIBLE) && box.comms[0].completed == 300,
	   "clocks that drift apart make no operation implausible (%llu)",
	   (unsigned long long)dropped(BOX_DROP_IMPLAUSIBLE));
}

int main(void)
{
	log2_init();
	test_lost_stops();
	test_a_start_that_is_late();
	test_channels_that_are_not_told();
	test_a_long_first_call();
	test_groups_out_of_order();
	test_beyond();
	test_drifting_clocks();
	return done_testing();
}
