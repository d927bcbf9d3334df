/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's thread is late by more than the last 64 works of a channel: what it tells then are times
 * of later works, as NCCL 2.27 to 2.30 finds them (src/transport/profiler.cc). */
#include "hot/late.h"
#include "hotbox.h"

#define WORK_NS 30000u
#define LONG_NS 3000000u
#define MAX 512u

static uint64_t host_ns = 1000000000; /* our clock, which the test plays */

int clock_gettime(clockid_t id, struct timespec *shown)
{
	(void)id;
	*shown = (struct timespec){ (time_t)(host_ns / 1000000000), (long)(host_ns % 1000000000) };
	return 0;
}

/* Of the only channel: works that ran on the GPU, and those that NCCL's thread looks at. */
static struct {
	unsigned told, run, seen;
	bool is_open; /* the thread has seen the start of the next one */
	void *ops[MAX], *kernel;
	uint64_t start_ns[MAX], stop_ns[MAX], now_ns, began_ns;
} gpu;

static void begin_with(uint8_t api)
{
	int error;

	memset(&gpu, 0, sizeof(gpu));
	clock_has_counter = false;
	gpu_ns = 1700000000000000000ull;
	box_open(&box, -1, "0", &error);
	track_init(&track, &box, 1ull << 32,
	           &(struct track_options){ .p2p = true, .timing = BOX_TIMING_GPU, .api = api });
	memset(&sweep, 0, sizeof(sweep));
	comm = comms_add(&track, &(struct comm_fields){
				     .id = 7, .name = "c", .nranks = 8, .nnodes = 2, .rank = 3 });
	gpu.began_ns = host_ns;
}

/* The application is ahead: `count` is as the key that they go to. */
static void tell(unsigned works, uint64_t count)
{
	while (works--) {
		track_plan_start(&track, comm);
		gpu.ops[gpu.told++] = start(comm, 1, count);
	}
}

static void run(unsigned works, uint64_t time_ns)
{
	while (works--) {
		gpu.start_ns[gpu.run] = gpu.now_ns += 2000;
		gpu.stop_ns[gpu.run++] = gpu.now_ns += time_ns;
	}
}

/* Until all that has run is over. */
static void wait(void)
{
	if (host_ns < gpu.began_ns + gpu.now_ns)
		host_ns = gpu.began_ns + gpu.now_ns;
}

/* The latest work that has run of those in the same place of the ring. */
static unsigned in_place(unsigned work)
{
	while (work + LATE_RING < gpu.run)
		work += LATE_RING;
	return work;
}

static void see_start(void)
{
	gpu.kernel = kernel(gpu.ops[gpu.seen], 0, gpu.start_ns[in_place(gpu.seen)]);
	gpu.is_open = true;
}

/* A look takes it 2 us. */
static void see(unsigned works)
{
	wait();
	while (works--) {
		if (!gpu.is_open)
			see_start();
		host_ns += 2000;
		stop(gpu.kernel, gpu.stop_ns[in_place(gpu.seen++)]);
		gpu.is_open = false;
	}
}

/* In time. */
static void see_each(unsigned works, uint64_t time_ns)
{
	while (works--) {
		run(1, time_ns);
		see(1); /* no sooner than it is over */
	}
}

static struct box_key *of(uint64_t count)
{
	for (unsigned i = 0; i < BOX_KEYS; i++)
		if (box.keys[i].used == 1 && box.keys[i].size_class == log2_q20(4 * count) >> 20)
			return &box.keys[i];
	return NULL;
}

static bool all_took(const struct box_key *key, uint64_t time_ns)
{
	return !key->ops || (key->min_ns == time_ns && key->max_ns == time_ns);
}

static void settle(void)
{
	sweep_round(&sweep, &track, clock_ticks());
	sweep_round(&sweep, &track, clock_ticks() + 1);
}

/* It saw the start of one in time and its stop when 119 more had run. */
static void test_the_stop_of_a_later_work_is_not_believed(uint8_t api)
{
	begin_with(api);
	tell(140, 1024);
	see_each(20, WORK_NS);
	run(1, WORK_NS);
	see_start();
	run(119, WORK_NS);
	see(120);
	settle();
	ok(box.keys[0].ops + box.keys[0].untimed_ops == 140, "v%u: all are counted", api);
	ok(all_took(&box.keys[0], WORK_NS), "v%u: none has more than a kernel took (%llu ns)", api,
	   (unsigned long long)box.keys[0].max_ns);
	ok(box.keys[0].ops >= 80, "v%u: those that it can yet read have their times (%llu)", api,
	   (unsigned long long)box.keys[0].ops);
	ok(dropped(BOX_DROP_IMPLAUSIBLE) == box.keys[0].untimed_ops, "v%u: the others are dropped",
	   api);
}

/* It saw neither. Large operations would have got the times of small ones. */
static void test_nor_both_of_a_later_work(void)
{
	begin_with(6);
	tell(4, 64 * 1024);
	see_each(4, LONG_NS);
	tell(56, 64 * 1024);
	tell(64, 1024);
	run(56, LONG_NS);
	run(64, WORK_NS);
	see(120);
	settle();
	ok(of(64 * 1024)->ops == 4 && of(64 * 1024)->untimed_ops == 56,
	   "those of which nothing is left have no time (%llu)",
	   (unsigned long long)of(64 * 1024)->ops);
	ok(all_took(of(64 * 1024), LONG_NS), "nor that of another");
	ok(of(1024)->ops == 64 && all_took(of(1024), WORK_NS), "what it can read has its own");
}

static void test_twice_around_the_ring(void)
{
	begin_with(6);
	tell(200, 1024);
	see_each(10, WORK_NS);
	run(1, WORK_NS);
	see_start();
	run(150, WORK_NS);
	see(151);
	see_each(39, WORK_NS);
	settle();
	ok(box.keys[0].ops + box.keys[0].untimed_ops == 200 && all_took(&box.keys[0], WORK_NS),
	   "neither those of 128 works later nor those of 64 are believed");
	ok(box.keys[0].ops >= 100, "what was in time is (%llu)",
	   (unsigned long long)box.keys[0].ops);
}

/* Its look comes when the GPU has done a hundred works more, each time: nothing contradicts. */
static void test_a_thread_that_falls_behind_ever_more(void)
{
	begin_with(6);
	tell(500, 1024);
	see_each(20, WORK_NS);
	for (unsigned i = 0; i < 40; i++) {
		run(10 + 7 * i % 5, WORK_NS);
		wait();
		host_ns += (i * 7919 % 64) * WORK_NS; /* it is not known how late */
		see(1);
	}
	settle();
	ok(all_took(&box.keys[0], WORK_NS), "nobody has the time of many works (%llu ns)",
	   (unsigned long long)box.keys[0].max_ns);
}

/* As on a host without a free processor: it is late by some works, and never by 64. */
static void test_a_thread_that_is_somewhat_late_is_believed(void)
{
	begin_with(6);
	tell(300, 1024);
	for (unsigned i = 0; i < 60; i++) {
		run(4, LONG_NS);
		wait();
		see(4);
	}
	settle();
	ok(completed() >= 200 && all_took(&box.keys[0], LONG_NS), "most have their times (%llu)",
	   (unsigned long long)completed());
}

static void test_a_thread_in_time_is_believed(void)
{
	begin_with(6);
	tell(80, 1024);
	see_each(40, LONG_NS);
	ok(completed() >= 30 && all_took(&box.keys[0], LONG_NS) && !dropped(BOX_DROP_IMPLAUSIBLE),
	   "long operations of an application that is far ahead (%llu)",
	   (unsigned long long)completed());
	see_each(40, LONG_NS);
	settle();
	ok(completed() == 80 && !box.comms[0].untimed, "all of them in the end");
}

static void test_nothing_is_held_of_an_application_that_waits(void)
{
	begin_with(6);
	for (unsigned i = 0; i < 10; i++) {
		tell(1, 1024);
		see_each(1, LONG_NS);
		gpu.now_ns += LONG_NS;
	}
	ok(completed() == 10, "each counts at once");
}

static void test_small_operations_are_not_held(void)
{
	begin_with(6);
	tell(1, 1024);
	see_each(1, WORK_NS);
	tell(200, 1024);
	see_each(100, WORK_NS);
	ok(completed() == 101, "64 of them take longer");
}

static void test_a_kernel_that_hangs_holds_nothing_for_long(void)
{
	begin_with(6);
	tell(100, 1024);
	see_each(1, LONG_NS);
	ok(!completed(), "nothing has followed on it");
	sweep_round(&sweep, &track, clock_ticks());
	ok(!completed(), "nor in the first round");
	sweep_round(&sweep, &track, clock_ticks() + 1);
	ok(completed() == 1 && all_took(&box.keys[0], LONG_NS), "in the second one it is believed");
}

static void test_what_is_held_survives_its_communicator(void)
{
	begin_with(6);
	tell(100, 1024);
	see_each(2, LONG_NS);
	comms_remove(&track, comm);
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		comms_add(&track, &(struct comm_fields){ .nranks = 2 });
	uint64_t over = 0;

	for (unsigned i = 0; i < BOX_KEYS; i++)
		over += box.keys[i].used == 1 ? box.keys[i].ops : 0;
	ok(over == 2 && !dropped(BOX_DROP_EXPIRED), "it is counted before its record is another's");
}

/* All that one kernel runs begins and ends together, however late the thread is. */
static void test_the_parts_of_a_kernel_do_not_contradict_each_other(void)
{
	begin_with(6);
	tell(20, 1024);
	see_each(20, WORK_NS);
	track_plan_start(&track, comm);
	for (unsigned i = 0; i < 100; i++) {
		gpu.ops[gpu.told++] = start(comm, 1, 1024);
		gpu.start_ns[gpu.run] = gpu.now_ns + 2000;
		gpu.stop_ns[gpu.run++] = gpu.now_ns + 2000 + LONG_NS;
	}
	gpu.now_ns += 2000 + LONG_NS;
	wait();
	host_ns += LONG_NS;
	for (gpu.run = 84; gpu.seen < 120; gpu.run++)
		see(1);
	settle();
	ok(completed() == 120 && !dropped(BOX_DROP_IMPLAUSIBLE), "all are believed (%llu)",
	   (unsigned long long)completed());
}

static void test_later_interfaces_have_no_such_ring(void)
{
	begin_with(7);
	tell(100, 1024);
	see_each(10, LONG_NS);
	ok(completed() == 10, "nothing is held");
}

int main(void)
{
	log2_init();
	for (uint8_t api = 4; api <= 6; api++)
		test_the_stop_of_a_later_work_is_not_believed(api);
	test_nor_both_of_a_later_work();
	test_twice_around_the_ring();
	test_a_thread_that_falls_behind_ever_more();
	test_a_thread_that_is_somewhat_late_is_believed();
	test_a_thread_in_time_is_believed();
	test_nothing_is_held_of_an_application_that_waits();
	test_small_operations_are_not_held();
	test_a_kernel_that_hangs_holds_nothing_for_long();
	test_what_is_held_survives_its_communicator();
	test_the_parts_of_a_kernel_do_not_contradict_each_other();
	test_later_interfaces_have_no_such_ring();
	return done_testing();
}
