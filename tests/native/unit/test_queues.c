/* SPDX-License-Identifier: Apache-2.0 */
/* What waits in the GPU's queue, as the rounds see it. */
#include "hotbox.h"

#define ALLREDUCE 1
#define SECOND_NS 1000000000ull

static uint64_t now_tick; /* of the rounds */

static void begin_looking(void)
{
	begin();
	now_tick = clock_ticks();
	sweep_round(&sweep, &track, now_tick);
	track.clocks_ticks = INT64_MAX; /* rounds are played ahead of the machine's clock: the
	                                   clocks are compared once */
}

static void look(void)
{
	now_tick += ticks_a_second();
	gpu_ns += SECOND_NS;
	sweep_round(&sweep, &track, now_tick);
}

static double queued_s(void)
{
	return (double)key_of(ALLREDUCE)->queued_ns / SECOND_NS;
}

static bool about(double value, double wanted)
{
	return value > wanted - 0.01 && value < wanted + 0.01;
}

static void test_what_waits(void)
{
	begin_looking();
	whole_operation(100, 200);
	void *waiting = start(comm, 1, 1024);

	start(comm, 1, 1024);
	look();
	ok(about(queued_s(), 2),
	   "two that were called and have not begun, for a second each (%.2f s)", queued_s());
	stop(kernel(waiting, 0, 300), 400);
	look();
	ok(about(queued_s(), 3), "then one for another second (%.2f s)", queued_s());
	ok(box.comms[0].looks == 3 && key_of(ALLREDUCE)->queued_looks == 2,
	   "in two of three looks");
}

static void test_what_began(void)
{
	begin_looking();
	whole_operation(100, 200);
	kernel(start(comm, 2, 1024), 0, 300);
	look();
	ok(queued_s() == 0 && !key_of(ALLREDUCE)->queued_looks && box.comms[0].looks == 2,
	   "what has begun on the GPU waits for its peers, not for the GPU");
}

static void test_long_steps(void)
{
	begin_looking();
	for (unsigned step = 0; step < 10; step++) {
		void *op = start(comm, 1, 1024);

		look();
		look();
		look();
		stop(kernel(op, 0, 100), 200);
		look();
	}
	ok(about(queued_s(), 30) && box.comms[0].looks == 41 &&
	       key_of(ALLREDUCE)->queued_looks == 30,
	   "a step of four seconds: what waited in rounds without an end counts when it ends (%.2f "
	   "s)",
	   queued_s());
}

static void test_a_standstill(void)
{
	begin_looking();
	whole_operation(100, 200);
	look();
	void *op = start(comm, 1, 1024);

	for (unsigned i = 0; i < 1000; i++)
		look();
	ok(queued_s() == 0, "what never begins is a hang and no queue");
	stop(kernel(op, 0, 300), 400);
	look();
	ok(queued_s() < 121 && box.comms[0].looks < 125,
	   "and if it ends, the last two minutes at most (%.0f s)", queued_s());
}

static void test_what_was_overtaken(void)
{
	begin_looking();
	start(comm, 1, 1024);
	whole_operation(100, 200);
	look();
	ok(queued_s() == 0,
	   "what a later one has overtaken is in no queue: it gets no kernel event");
}

static void test_whose_it_is(void)
{
	begin_looking();
	void *other = comms_add(
	    &track,
	    &(struct comm_fields){ .id = 8, .name = "d", .nranks = 8, .nnodes = 2, .rank = 3 });

	whole_operation(100, 200);
	start(other, 1, 1024);
	look();
	ok(queued_s() == 0 && !box.comms[1].looks,
	   "a look counts when the communicator itself moves");
	stop(kernel(start(other, 1, 1024), 0, 300), 400);
	look();
	ok(box.comms[1].looks == 2, "all of them then");
}

int main(void)
{
	log2_init();
	test_what_waits();
	test_what_began();
	test_long_steps();
	test_a_standstill();
	test_what_was_overtaken();
	test_whose_it_is();
	return done_testing();
}
