/* SPDX-License-Identifier: Apache-2.0 */
/* The host's time inside NCCL's calls and launches. */
#include <pthread.h>

#include "hot/hosttime.h"
#include "hotbox.h"

#define MS 1000000ull
#define CALLS 2000u

static struct hosttime host;

static void begin_host(bool on)
{
	begin();
	memset(&host, 0, sizeof(host));
	track.options.host_time = on;
	host.track = &track;
}

static void pass(uint64_t ns)
{
	struct timespec pause = { .tv_nsec = (long)ns };

	nanosleep(&pause, NULL);
}

static void call(uint64_t before_end_ns, uint64_t in_end_ns)
{
	void *group = track_group_start(&track, comm);

	pass(before_end_ns);
	hosttime_call_begins(&host, group);
	pass(in_end_ns);
	hosttime_call_over(&host, group);
	track_group_stop(&track, group);
}

static void test_calls(void)
{
	const struct box_host_time *calls;

	begin_host(true);
	calls = &box.header->calls;
	call(0, 5 * MS);
	ok(calls->count == 1 && calls->ns >= 5 * MS && calls->max_ns == calls->ns,
	   "a call counts from ncclGroupEnd on");
	uint64_t first_ns = calls->ns, since = clock_ticks();

	call(30 * MS, 0);
	uint64_t took_ns = clock_ticks_to_ns(clock_ticks() - since, track.ns_per_tick_q32);

	ok(calls->count == 2 && calls->ns - first_ns <= took_ns - 30 * MS,
	   "and not what the application does in its group");
	call(0, 0);
	ok(calls->count == 3 && calls->max_ns < calls->ns, "the longest one stands");
	hosttime_call_over(&host, track_group_start(&track, comm));
	ok(calls->count == 3, "one whose begin was not told is not counted");
}

static void test_launches(void)
{
	begin_host(true);
	void *launch = hosttime_launch_begins(&host, comm);

	pass(2 * MS);
	hosttime_launch_over(&host, launch);
	hosttime_launch_over(&host, launch);
	ok(box.header->launches.count == 1 && box.header->launches.ns >= 2 * MS,
	   "a launch is counted once");
	ok(!box.header->calls.count, "and is no call");
}

static void test_off(void)
{
	begin_host(false);
	call(0, 0);
	ok(!hosttime_launch_begins(&host, comm) && !box.header->calls.count,
	   "nothing is taken unasked");
	ok(!hosttime_events(&host, 7), "and NCCL is not asked for launches");
	track.options.host_time = true;
	ok(hosttime_events(&host, 5) && !hosttime_events(&host, 4), "asked, it is from v5 on");
}

static void test_foreign_handles(void)
{
	static const uint64_t words[] = { 0,
	                                  5,
	                                  UINT64_MAX,
	                                  HANDLE_GROUP | 0xffffull << HANDLE_COMM_SHIFT,
	                                  HANDLE_LAUNCH | 0xffffull << HANDLE_COMM_SHIFT,
	                                  HANDLE_OPERATION };

	begin_host(true);
	for (unsigned i = 0; i < sizeof(words) / sizeof(*words); i++) {
		hosttime_call_begins(&host, handle_of(words[i]));
		hosttime_call_over(&host, handle_of(words[i]));
		hosttime_launch_over(&host, handle_of(words[i]));
		hosttime_launch_begins(&host, handle_of(words[i] | 0xffff));
	}
	ok(!box.header->calls.count && !box.header->launches.count,
	   "handles that are not ours count nothing");
	void *group = track_group_start(&track, comm);

	hosttime_call_begins(&host, group);
	track_silence(&track);
	hosttime_call_over(&host, group);
	ok(!box.header->calls.count, "nor does a forked child");
}

/* A thread that calls another communicator. */
static void *many_calls(void *context)
{
	for (unsigned i = 0; i < CALLS; i++) {
		void *group = track_group_start(&track, context), *launch;

		hosttime_call_begins(&host, group);
		launch = hosttime_launch_begins(&host, context);
		hosttime_launch_over(&host, launch);
		hosttime_call_over(&host, group);
		track_group_stop(&track, group);
	}
	return NULL;
}

static void test_threads(void)
{
	pthread_t other;

	begin_host(true);
	void *second = comms_add(
	    &track, &(struct comm_fields){ .id = 8, .name = "d", .nranks = 8, .nnodes = 2 });

	pthread_create(&other, NULL, many_calls, second);
	many_calls(comm);
	pthread_join(other, NULL);
	ok(box.header->calls.count == 2 * CALLS && box.header->launches.count == 2 * CALLS,
	   "threads of two communicators lose no call");
	ok(box.header->calls.ns >= box.header->launches.ns, "a launch is within its call");
}

int main(void)
{
	test_calls();
	test_launches();
	test_off();
	test_foreign_handles();
	test_threads();
	return done_testing();
}
