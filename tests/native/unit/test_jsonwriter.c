/* SPDX-License-Identifier: Apache-2.0 */
/* The thread of the JSON mode: what is pushed is in the files, or counted; nobody waits for it. */
#include <pthread.h>
#include <sys/resource.h>

#include "jsonbox.h"

#define PRODUCERS 2u

static bool wait_for_lines(uint64_t lines)
{
	struct timespec pause = { 0, 10000000 };

	for (uint64_t until = now_ms() + 30000; now_ms() < until; nanosleep(&pause, NULL))
		if (in_files().lines >= lines)
			return true;
	return false;
}

static void test_life(void)
{
	struct config config;

	begin(&config);
	for (uint64_t i = 1; i <= 100; i++)
		push(i % 2, 1, i);
	ok(wait_for_lines(100), "lines come while the job runs");
	push(0, 1, 1000);
	ok(end(30000) < 30000 && atomic_load(&writer.idle), "the thread ends when it is told");
	struct timeline found = in_files();

	ok(found.lines == 101 && !found.bad && found.sum == 5050 + 1000,
	   "every operation has a line");
	ok(jsonwriter_start(&writer) == 0 && push(1, 1, 7) && wait_for_lines(102),
	   "a later communicator's go to the same file");
	uint64_t from = now_ms();

	push(1, 1, 8);
	jsonwriter_close(&writer, clock_ns(CLOCK_MONOTONIC) + 30000000000ull);
	ok(in_files().lines == 103 && now_ms() - from < 30000, "an exit writes what there is, too");
	ok(!logged, "and nothing was said");
	leave();
}

static void test_generations(void)
{
	struct config config;

	begin(&config);
	push(0, 1, 1);
	add_comm(0, 3);
	push(0, 3, 2);
	push(0, 5, 4); /* nobody said what this is */
	push(0, 3, 8);
	end(30000);
	struct timeline found = in_files();

	ok(found.lines == 3 && found.sum == 11 && found.dropped == 1,
	   "an operation of an unknown communicator is counted");
	leave();
}

/* NCCL up to 2.26 tells the names with the first operation. */
static void test_late_names(void)
{
	struct config config;
	char path[320], line[4096] = "";

	begin(&config);
	for (unsigned i = 2; i <= 3; i++)
		jsonwriter_add_comm(
		    &writer, &(struct json_comm_fields){
				 .comm = i, .generation = 1, .unnamed = true, .gpu_uuid = "" });
	push(3, 1, 1);
	jsonwriter_add_comm(&writer, &(struct json_comm_fields){ .comm = 2,
	                                                         .generation = 1,
	                                                         .id = 0xabc,
	                                                         .rank = 3,
	                                                         .name = "late",
	                                                         .nranks = -1,
	                                                         .gpu_uuid = "" });
	push(2, 1, 1);
	atomic_store(&comms[2].untimed, 6);
	atomic_store(&comms[2].state, BOX_COMM_LIVE);
	end(30000);
	snprintf(path, sizeof(path), "%s/%s.log", base, writer.file.stem);
	FILE *file = fopen(path, "r");

	ok(file && fgets(line, sizeof(line), file) &&
	       strstr(line, "{\"header\":{\"id\":\"0xabc\",\"comm_name\":\"late\",\"rank\":3,") ==
	           line,
	   "a name that came late is in the line\n# %s", line);
	ok(strstr(line, "\"operations_unmeasured\":6}"),
	   "as is the number of operations without a time");
	ok(file && !fgets(line, sizeof(line), file) && header.dropped[BOX_DROP_JSON] == 1,
	   "an operation whose communicator has no name is counted, not given one");
	if (file)
		fclose(file);
	leave();
}

static void *produce(void *argument)
{
	unsigned comm = (unsigned)(uintptr_t)argument;
	struct timespec pause = { 0, 1000000 };

	for (uint64_t burst = 0; burst < 1000; burst++) { /* 10,000 a second each */
		for (uint64_t i = 0; i < 10; i++)
			push(comm, 1, 1);
		nanosleep(&pause, NULL);
	}
	return NULL;
}

/* Lines are only lost when the thread gets no processor for most of a second: on a busy machine it
 * may need a try more. */
static void test_20000_a_second(void)
{
	struct timeline found = { 0 };
	struct config config;

	for (unsigned tries = 0; tries < 3 && found.lines < 20000; tries++) {
		pthread_t threads[PRODUCERS];

		begin(&config);
		for (uintptr_t i = 0; i < PRODUCERS; i++)
			pthread_create(&threads[i], NULL, produce, (void *)i);
		for (unsigned i = 0; i < PRODUCERS; i++)
			pthread_join(threads[i], NULL);
		end(30000);
		found = in_files();
		ok(found.lines + found.dropped == 20000 && !found.bad,
		   "20,000 in a second: %llu have lines, %llu are counted",
		   (unsigned long long)found.lines, (unsigned long long)found.dropped);
		leave();
	}
	ok(found.lines == 20000, "none is lost");
	printf("# %.2f us of CPU and %.0f bytes for each operation\n",
	       (double)atomic_load(&header.self_ns) / 1e3 / 20000,
	       (double)found.bytes / (double)found.lines);
}

/* The limit of the process stands in for a full disk. */
static void test_no_room(void)
{
	struct rlimit old, none;
	struct config config;
	uint64_t pushed = 0;

	getrlimit(RLIMIT_FSIZE, &old);
	none = old;
	none.rlim_cur = 0;
	setrlimit(RLIMIT_FSIZE, &none);
	begin(&config);
	struct timespec pause = { 0, 1000000 };

	for (uint64_t until = now_ms() + 30000;
	     (!logged || !header.dropped[BOX_DROP_JSON]) && now_ms() < until;
	     nanosleep(&pause, NULL))
		for (int i = 0; i < 1000; i++)
			pushed += push(0, 1, 1);
	uint64_t dropped = atomic_load(&header.dropped[BOX_DROP_JSON]);

	setrlimit(RLIMIT_FSIZE, &old);
	ok(dropped > 0, "where nothing can be written, the newest are dropped");
	ok(wait_for_lines(pushed), "when it can be again, the rest is written");
	ok(logged == 1, "one line was logged (%u)", (unsigned)logged);
	end(30000);
	struct timeline found = in_files();

	ok(found.lines == pushed && found.dropped == dropped && !found.bad,
	   "and says how many are missing (%llu)", (unsigned long long)found.dropped);
	check_account(pushed + dropped, "as the box does");
	leave();
}

static void test_rotation(void)
{
	struct config config;
	struct timeline found;

	variables[0][0] = "NCCL_INSPECTOR_JSON_MAX_BYTES";
	variables[0][1] = "1048576";
	begin(&config);
	struct timespec pause = { 0, 1000000 };
	uint64_t pushed = 0;

	for (uint64_t until = now_ms() + 20000; pushed < 3000 && now_ms() < until;
	     nanosleep(&pause, NULL))
		for (int i = 0; i < 200; i++)
			pushed += push(0, 1, 1);
	end(30000);
	found = in_files();
	ok(found.bytes <= 1048576 && found.bytes > 524288 - 65536 && !found.bad &&
	       found.lines < pushed,
	   "the files of a process do not grow beyond the limit (%llu bytes)",
	   (unsigned long long)found.bytes);
	leave();
}

int main(void)
{
	snprintf(base, sizeof(base), "/dev/shm/test_jsonwriter.XXXXXX");
	if (!ok(mkdtemp(base) != NULL, "a directory"))
		return done_testing();
	header.clock.ns_per_tick_q32 = clock_calibrate();
	test_20000_a_second();
	test_life();
	test_generations();
	test_late_names();
	test_no_room();
	test_rotation();
	rmdir(base);
	return done_testing();
}
