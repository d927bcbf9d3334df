/* SPDX-License-Identifier: Apache-2.0 */
/* The last round of the JSON thread: what was handed over is in the file, or counted as missing. */
#include "jsonbox.h"

static void begin_verbose(struct config *config, const char *interval)
{
	variables[0][0] = "NCCL_INSPECTOR_DUMP_VERBOSE";
	variables[0][1] = "1";
	variables[1][0] = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS";
	variables[1][1] = interval;
	begin(config);
}

static void test_without_an_interval(void)
{
	struct timespec pause = { 0, 1000000 };
	struct config config;
	uint64_t pushed = 0;

	variables[0][0] = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS";
	variables[0][1] = "-1";
	begin(&config);
	push(0, 1, 1);
	for (uint64_t until = now_ms() + 30000; !in_files().lines && now_ms() < until;
	     nanosleep(&pause, NULL))
		for (int i = 0; i < 100; i++, pushed++)
			push(0, 1, 1);
	pushed++;
	struct timeline found = in_files();

	ok(found.lines, "without an interval lines come when many have come together");
	for (int i = 0; i < 40000; i++, pushed++)
		push(0, 1, 1);
	end(30000);
	check_account(pushed, "and the rest at the end");
	ok(in_files().lines > 16384, "all that there was room for");
	leave();
}

/* Long lines fill the buffer many times in the last round. */
static void test_a_last_round_of_long_lines(void)
{
	static struct trace_op trace;
	struct config config;
	uint64_t pushed = 0;
	char name[JSON_NAME_BYTES + 1];

	memset(name, '"', sizeof(name) - 1);
	name[sizeof(name) - 1] = '\0';
	for (int at_exit = 0; at_exit < 2; at_exit++) {
		begin_verbose(&config, "-1");
		jsonwriter_add_comm(&writer, &(struct json_comm_fields){ .comm = 2,
		                                                         .generation = 1,
		                                                         .id = 3,
		                                                         .name = name,
		                                                         .nranks = 2,
		                                                         .gpu_uuid = "" });
		const struct json_record record = { .enqueue_tick = 1,
		                                    .end_tick = 2,
		                                    .gpu_start_ns = 5,
		                                    .time_ns = 1000,
		                                    .bytes = 1 << 20,
		                                    .kind = BOX_FUNC_ALLREDUCE,
		                                    .peer = -1,
		                                    .comm = 2,
		                                    .comm_generation = 1 };

		for (pushed = 0; jsonring_push(&writer.ring, &record, &trace); pushed++)
			;
		if (at_exit)
			jsonwriter_close(&writer, clock_ns(CLOCK_MONOTONIC) + 30000000000ull);
		else
			end(30000);
		ok(pushed >= 2048 && in_files().lines == pushed,
		   "all lines of a full ring are there (%llu)", (unsigned long long)pushed);
		check_account(pushed + 1, at_exit ? "by an exit" : "by the last communicator");
		leave();
	}
}

/* The directory can never be made. */
static void test_nowhere(void)
{
	struct config config;

	for (int at_exit = 0; at_exit < 2; at_exit++) {
		begin(&config);
		strcpy(writer.file.dir, "/proc/self/nowhere");
		for (int i = 0; i < 1000; i++)
			push(0, 1, 1);
		if (at_exit)
			jsonwriter_close(&writer, clock_ns(CLOCK_MONOTONIC) + 30000000000ull);
		else
			end(30000);
		ok(atomic_load(&header.dropped[BOX_DROP_JSON]) == 1000 &&
		       !atomic_load(&header.json_lines),
		   "lines that nowhere takes are counted by %s",
		   at_exit ? "an exit" : "the last communicator");
		leave();
	}
}

/* No thread has come to it before the end. */
static void test_no_time(void)
{
	struct config config;

	variables[0][0] = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS";
	variables[0][1] = "-1";
	begin(&config);
	for (int i = 0; i < 1000; i++)
		push(0, 1, 1);
	jsonwriter_close(&writer, clock_ns(CLOCK_MONOTONIC));
	end(30000);
	check_account(1000, "an exit that cannot wait");
	leave();
}

int main(void)
{
	snprintf(base, sizeof(base), "/dev/shm/test_jsonend.XXXXXX");
	if (!ok(mkdtemp(base) != NULL, "a directory"))
		return done_testing();
	header.clock.ns_per_tick_q32 = clock_calibrate();
	test_without_an_interval();
	test_a_last_round_of_long_lines();
	test_nowhere();
	test_no_time();
	rmdir(base);
	return done_testing();
}
