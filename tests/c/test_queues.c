/* SPDX-License-Identifier: Apache-2.0 */
/* What waits in the GPU's queue, as the rounds see it. */
#include "trackbox.h"

#define ALLREDUCE 1
#define SECOND_NS 1000000000ull

static uint64_t now_tick; /* of the rounds */

static void begin_looking(void)
{
	begin();
	now_tick = clock_ticks();
	sweep_round(&sweep, &track, now_tick);
}

static void look(void)
{
	now_tick += ticks_a_second();
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
	ok(about(queued_s(), 2), "two that were called and have not begun, for a second each (%.2f s)", queued_s());
	stop(kernel(waiting, 0, 300), 400);
	look();
	ok(about(queued_s(), 3), "then one for another second (%.2f s)", queued_s());
	ok(box.comms[0].looks == 2 && key_of(ALLREDUCE)->queued_looks == 2, "in two looks");
}

static void test_what_began(void)
{
	begin_looking();
	whole_operation(100, 200);
	kernel(start(comm, 2, 1024), 0, 300);
	look();
	ok(queued_s() == 0 && !key_of(ALLREDUCE)->queued_looks && box.comms[0].looks == 1,
	   "what has begun on the GPU waits for its peers, not for the GPU");
}

static void test_a_standstill(void)
{
	begin_looking();
	whole_operation(100, 200);
	start(comm, 1, 1024);
	look();
	for (unsigned i = 0; i < 100; i++)
		look();
	ok(about(queued_s(), 1) && box.comms[0].looks == 1, "where nothing completes nobody looks: a hang is no queue");
}

static void test_what_was_overtaken(void)
{
	begin_looking();
	start(comm, 1, 1024);
	whole_operation(100, 200);
	look();
	ok(queued_s() == 0, "what a later one has overtaken is in no queue: it gets no kernel event");
}

static void test_whose_it_is(void)
{
	begin_looking();
	void *other = comms_add(&track, &(struct comm_words){ .id = 8, .name = "d", .nranks = 8, .nnodes = 2, .rank = 3 });

	whole_operation(100, 200);
	start(other, 1, 1024);
	look();
	ok(queued_s() == 0 && !box.comms[1].looks, "a communicator is looked at when it moves itself");
	stop(kernel(start(other, 1, 1024), 0, 300), 400);
	look();
	ok(box.comms[1].looks == 1, "the other one then");
}

int main(void)
{
	log2_init();
	test_what_waits();
	test_what_began();
	test_a_standstill();
	test_what_was_overtaken();
	test_whose_it_is();
	return done_testing();
}
