/* SPDX-License-Identifier: Apache-2.0 */
/* The inspector's life in a process: first and last communicator, very many, forked children, a
 * program with much thread-local data, the process-wide mask, and all of it while the site has the
 * inspector disabled. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "whole_plugin.h"

/* Such as Fortran's threadprivate arrays: glibc takes it out of every thread's stack. */
static __thread char much[254000];

static char dir[64];
static _Atomic bool over;

static void *make_and_end(void *argument)
{
	(void)argument;
	for (uint64_t id = 100; !atomic_load(&over); id++)
		inspector_finalize(make(id));
	return NULL;
}

static void *watch_mask(void *argument)
{
	uint64_t *zeros = argument;

	while (!atomic_load(&over))
		*zeros += __atomic_load_n(&mask, __ATOMIC_RELAXED) == 0;
	return NULL;
}

static int child_status(pid_t child)
{
	uint64_t end = clock_ns(CLOCK_MONOTONIC) + 20000000000ull;
	struct timespec pause = { 0, 1000000 };
	int status;

	while (waitpid(child, &status, WNOHANG) == 0) {
		if (clock_ns(CLOCK_MONOTONIC) > end) {
			kill(child, SIGKILL);
			waitpid(child, &status, 0);
			return -1;
		}
		nanosleep(&pause, NULL);
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_life(void)
{
	void *first = make(1), *second = make(2);

	much[0] = 1;
	ok(first && second && mask == WANTED, "a communicator gets a context and the mask");
	inspector_finalize(first);
	uint64_t begin = clock_ns(CLOCK_MONOTONIC);

	inspector_finalize(second);
	uint64_t took_ms = (clock_ns(CLOCK_MONOTONIC) - begin) / 1000000;

	ok(took_ms <= 150, "the last destroy waits for little (%llu ms)",
	   (unsigned long long)took_ms);
	inspector_finalize(NULL);
	inspector_finalize((void *)0xdeadbeef);
	ok(true, "contexts that are not ours are no harm");
}

static void test_the_mask_of_others(void)
{
	uint64_t zeros = 0;
	pthread_t maker, watcher;
	void *mine = make(3);
	struct timespec pause = { 0, 300000000 };

	pthread_create(&watcher, NULL, watch_mask, &zeros);
	pthread_create(&maker, NULL, make_and_end, NULL);
	nanosleep(&pause, NULL);
	atomic_store(&over, true);
	pthread_join(maker, NULL);
	pthread_join(watcher, NULL);
	atomic_store(&over, false);
	ok(zeros == 0, "making a communicator does not stop the measuring of others (%llu)",
	   (unsigned long long)zeros);
	inspector_finalize(mine);
}

/* Whether a child of ours, which runs no other program, still maps a box. */
static bool inherits_box(void)
{
	pid_t child = fork();

	if (!child) {
		char line[512];
		FILE *maps = fopen("/proc/self/maps", "r");

		while (fgets(line, sizeof(line), maps))
			if (strstr(line, ".box"))
				_exit(1);
		_exit(0);
	}
	return child_status(child) != 0;
}

static void test_children(void)
{
	void *mine = make(4);
	pthread_t maker;
	int bad = 0;

	pthread_create(&maker, NULL, make_and_end, NULL);
	for (int i = 0; i < 20; i++) {
		pid_t child = fork();

		if (!child) {
			int child_mask = WANTED;
			void *context = mine;

			inspector_finalize(mine);
			inspector_init(&(struct inspector_comm){ .api = 7 }, &context, &child_mask);
			_exit(context || child_mask ? 1 : 0);
		}
		bad += child_status(child) != 0;
	}
	atomic_store(&over, true);
	pthread_join(maker, NULL);
	ok(bad == 0, "a forked child neither hangs nor measures (%d of 20)", bad);
	ok(!inherits_box(), "nor does it keep the box's memory");
	pid_t child = fork();

	if (!child)
		exit(0); /* the parent's destructor runs here, too */
	ok(child_status(child) == 0 && inspector_track.box->header->state == BOX_LIVE,
	   "its exit leaves the parent's box alone");
	inspector_finalize(mine);
	ok(inspector_track.box->header->state == BOX_FINALIZED, "which the parent finalizes");
}

/* NCCL comes and goes with its mask: nobody may touch the old one. */
static void test_further_lives(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	uint64_t begin = clock_ns(CLOCK_MONOTONIC);
	unsigned bad = 0;

	for (unsigned i = 0; i < 100; i++) {
		int *its_mask =
		    mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		void *context = make_with(its_mask, 9);

		bad += !context || *its_mask != WANTED ||
		       inspector_track.box->header->state != BOX_LIVE;
		inspector_finalize(context);
		munmap(its_mask, page);
	}
	ok(!bad && inspector_track.box->header->state == BOX_FINALIZED,
	   "NCCL may be used again and again (%u)", bad);
	uint64_t took_ms = (clock_ns(CLOCK_MONOTONIC) - begin) / 1000000;

	ok(took_ms < 10000, "a hundred ends take %llu ms", (unsigned long long)took_ms);
}

static uint64_t resident_pages(void)
{
	unsigned long long total, resident = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	if (!file || fscanf(file, "%llu %llu", &total, &resident) != 2)
		resident = 0;
	if (file)
		fclose(file);
	return resident;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define VERY_MANY 10000u
#define MOST_PAGES INT64_MAX /* a sanitizer remembers */
#else
#define VERY_MANY 100000u
#define MOST_PAGES 64
#endif

static void test_very_many(void)
{
	void *mine = make(5), *some[4] = { NULL };
	uint64_t before = 0, created = inspector_track.box->header->comms_created;

	/* An emulator takes its time. */
	const uint64_t very_many =
	    getenv("NCCL_INSPECTOR_TEST_EMULATED") ? VERY_MANY / 20 : VERY_MANY;

	for (uint64_t i = 0; i < very_many; i++) {
		inspector_finalize(some[i % 4]);
		some[i % 4] = make(1000 + i);
		if (i == 1000)
			before = resident_pages();
	}
	for (unsigned i = 0; i < 4; i++)
		inspector_finalize(some[i]);
	ok(inspector_track.box->header->comms_created == created + very_many &&
	       mask_now() == WANTED,
	   "%llu communicators in a life", (unsigned long long)very_many);
	int64_t grown = (int64_t)(resident_pages() - before);

	/* An emulator's memory grows with what it has translated. */
	ok(grown < MOST_PAGES || getenv("NCCL_INSPECTOR_TEST_EMULATED"),
	   "take no memory (%lld pages)", (long long)grown);
	inspector_finalize(mine);
}

static bool wait_for_silent(enum box_silent silent)
{
	uint64_t end = clock_ns(CLOCK_MONOTONIC) + 20000000000ull;
	struct timespec pause = { 0, 1000000 };

	while (inspector_track.box->header->silent != silent && clock_ns(CLOCK_MONOTONIC) < end)
		nanosleep(&pause, NULL);
	return inspector_track.box->header->silent == silent;
}

/* What a program finds open that a child of ours runs. */
static bool inherits_something(void)
{
	char command[160];
	pid_t child = fork();

	snprintf(command, sizeof(command), "! ls -l /proc/self/fd | grep %s >&2", dir);
	if (!child) {
		execl("/bin/sh", "sh", "-c", command, NULL);
		_exit(9);
	}
	return child_status(child) != 0;
}

/* Another NCCL in the process comes and goes, and its mask with it. */
static void test_another_library(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	int *its_mask =
	    mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char path[96];
	void *mine = make(20), *its = make_with(its_mask, 9), *more = make_with(its_mask, 9);
	void *beyond[BOX_LIVE_COMMS];

	ok(mine && its && mask_now() == WANTED && *its_mask == WANTED,
	   "two libraries have their masks");
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		beyond[i] = make_with(its_mask, 9);
	inspector_finalize(its);
	inspector_finalize(its); /* one too many */
	inspector_finalize(more);
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		inspector_finalize(beyond[i]);
	munmap(its_mask, page);
	snprintf(path, sizeof(path), "%s/disabled", dir);
	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
	ok(wait_for_silent(BOX_SILENT_DISABLED) && mask_now() == 0,
	   "without the one the other is still told");
	unlink(path);
	ok(wait_for_silent(BOX_SILENT_NOT) && mask_now() == WANTED, "of the switch, both ways");
	ok(inspector_track.box->header->state == BOX_LIVE, "the process lives on");
	inspector_finalize(mine);
	ok(inspector_track.box->header->state == BOX_FINALIZED, "until its last communicator");
}

static void test_while_disabled(void)
{
	char path[96];
	void *mine = make(6), *more;
	int status;

	snprintf(path, sizeof(path), "%s/disabled", dir);
	close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
	ok(wait_for_silent(BOX_SILENT_DISABLED) && mask_now() == 0, "disabled: the mask is 0");
	more = make(7);
	ok(more && mask_now() == 0, "a new communicator has a context, and the mask stays 0");
	ok(!inherits_something(), "a program that is run meanwhile inherits nothing");
	fflush(stdout); /* or the child says it all again */
	pid_t child = fork();

	if (!child) {
		int child_mask = WANTED;
		void *context = mine;

		inspector_finalize(mine);
		inspector_init(&(struct inspector_comm){ .api = 7 }, &context, &child_mask);
		exit(context || child_mask ? 1 : 0);
	}
	status = child_status(child);
	ok(!status && inspector_track.box->header->silent == BOX_SILENT_DISABLED &&
	       inspector_track.box->header->state == BOX_LIVE,
	   "a child's exit leaves the parent's silence alone");
	uint64_t begin = clock_ns(CLOCK_MONOTONIC);

	inspector_finalize(mine);
	inspector_finalize(more);
	uint64_t took_ms = (clock_ns(CLOCK_MONOTONIC) - begin) / 1000000;

	ok(took_ms <= 150, "the last destroy waits for little (%llu ms)",
	   (unsigned long long)took_ms);
	mine = make(8);
	ok(mask_now() == 0, "a further life begins in silence");
	unlink(path);
	ok(wait_for_silent(BOX_SILENT_NOT) && mask_now() == WANTED,
	   "which ends when it is enabled");
	inspector_finalize(mine);
}

int main(void)
{
	char command[128];

	snprintf(dir, sizeof(dir), "/dev/shm/nccl-inspector-test-XXXXXX");
	if (!mkdtemp(dir))
		return 1;
	setenv("NCCL_INSPECTOR_ENABLE", "1", 1);
	setenv("NCCL_INSPECTOR_RUN_DIR", dir, 1);
	setenv("NCCL_INSPECTOR_CONTROL_DIR", dir, 1);
	setenv("NCCL_INSPECTOR_PROM_DUMP", "1", 1);
	setenv("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "100000", 1);
	test_life();
	test_the_mask_of_others();
	test_children();
	test_further_lives();
	test_very_many();
	test_another_library();
	test_while_disabled();
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command) || done_testing();
}
