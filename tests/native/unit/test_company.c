/* SPDX-License-Identifier: Apache-2.0 */
/* The inspector in odd company: a logger that hangs, more GPUs than there are, a process of real
 * time. */
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "whole_plugin.h"

static _Atomic bool logger_hangs = true, logging;

/* As one that writes into a pipe which nobody reads. */
static void hanging_logger(int level, unsigned long subsystem, const char *file, int line,
                           const char *format, ...)
{
	struct timespec pause = { 0, 1000000 };

	(void)level, (void)subsystem, (void)file, (void)line, (void)format;
	atomic_store(&logging, true);
	while (atomic_load(&logger_hangs))
		nanosleep(&pause, NULL);
}

static void *make_with_logger(void *argument)
{
	static int its_mask;
	void *context;

	(void)argument;
	inspector_init(&(struct inspector_comm){ .api = 7, .logger = hanging_logger }, &context,
	               &its_mask);
	return context;
}

/* The first init of the process has something to say: a bad word in the list of versions. */
static void test_a_logger_that_hangs(void)
{
	uint64_t end = clock_ns(CLOCK_MONOTONIC) + 20000000000ull;
	struct timespec pause = { 0, 1000000 };
	void *mine, *its;
	pthread_t maker;

	pthread_create(&maker, NULL, make_with_logger, NULL);
	while (!atomic_load(&logging) && clock_ns(CLOCK_MONOTONIC) < end)
		nanosleep(&pause, NULL);
	ok(atomic_load(&logging), "there is something to be logged");
	alarm(20);
	mine = make(30);
	ok(mine && mask_now() == WANTED, "others do not wait for it");
	uint64_t begin = clock_ns(CLOCK_MONOTONIC);

	inspector_finalize(mine);
	uint64_t took_ms = (clock_ns(CLOCK_MONOTONIC) - begin) / 1000000;

	ok(took_ms >= 80 && took_ms <= 150, "a libnccl that goes does so, but for little (%llu ms)",
	   (unsigned long long)took_ms);
	atomic_store(&logger_hangs, false);
	pthread_join(maker, &its);
	alarm(0);
	inspector_finalize(its);
}

static void test_too_many_gpus(void)
{
	struct box_header *header = inspector_track.box->header;
	struct box_gpu before[BOX_GPUS];
	const struct event event = { .peer = EVENT_NO_PEER,
	                             .func = "AllReduce",
	                             .datatype = "ncclInt8",
	                             .algo = "RING",
	                             .proto = "LL",
	                             .count = 8,
	                             .channels = 1 };

	memcpy(before, header->gpu, sizeof(before));
	for (unsigned i = 0; i < BOX_GPUS; i++) {
		header->gpu[i].used = 1;
		snprintf(header->gpu[i].uuid, sizeof(header->gpu[i].uuid), "GPU-%u", i);
	}
	uint64_t created = header->comms_created, dropped = header->dropped[BOX_DROP_NO_COMM];
	void *mine = make(40);

	ok(mine && header->comms_created == created + 1 && mask_now() == WANTED,
	   "one GPU too many has a context");
	ok(!track_operation(&inspector_track, mine, &event) &&
	       header->dropped[BOX_DROP_NO_COMM] == dropped + 1,
	   "its operations are counted, and are nobody else's");
	inspector_finalize(mine);
	ok(header->state == BOX_FINALIZED, "and it ends as any other");
	memcpy(header->gpu, before, sizeof(before));
}

/* How many threads of this process are of real time; *threads: of so many. */
static unsigned count_real_time(unsigned *threads)
{
	DIR *tasks = opendir("/proc/self/task");
	unsigned found = 0;

	*threads = 0;
	for (struct dirent *task = readdir(tasks); task; task = readdir(tasks)) {
		int tid = atoi(task->d_name);

		*threads += tid > 0;
		found += tid > 0 && sched_getscheduler(tid) != SCHED_OTHER;
	}
	closedir(tasks);
	return found;
}

static void test_real_time(void)
{
	const struct sched_param first = { .sched_priority = 1 }, none = { 0 };
	uint64_t end = clock_ns(CLOCK_MONOTONIC) + 5000000000ull;
	struct timespec pause = { 0, 1000000 };
	unsigned threads, found;

	if (sched_setscheduler(0, SCHED_FIFO, &first)) {
		ok(true, "# SKIP this may not be of real time");
		return;
	}
	void *mine = make(41);

	sched_setscheduler(0, SCHED_OTHER, &none);
	while ((found = count_real_time(&threads)) && clock_ns(CLOCK_MONOTONIC) < end)
		nanosleep(&pause, NULL);
	ok(threads >= 2 && !found, "in a process of real time our thread is not (%u of %u are)",
	   found, threads);
	inspector_finalize(mine);
}

int main(void)
{
	char dir[64], command[128];

	snprintf(dir, sizeof(dir), "/dev/shm/nccl-inspector-test-XXXXXX");
	if (!mkdtemp(dir))
		return 1;
	setenv("NCCL_INSPECTOR_ENABLE", "1", 1);
	setenv("NCCL_INSPECTOR_RUN_DIR", dir, 1);
	setenv("NCCL_INSPECTOR_DENY_NCCL", "every", 1);
	test_a_logger_that_hangs();
	test_too_many_gpus();
	test_real_time();
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command) || done_testing();
}
