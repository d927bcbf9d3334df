/* SPDX-License-Identifier: Apache-2.0 */
/* The inspector's life in a process: first and last communicator, forked children, a program with much thread-local
 * data, and the process-wide mask. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "inspector.h"
#include "tap.h"

#define WANTED (ABI_COLL | ABI_P2P | ABI_KERNEL_CH | ABI_CE_COLL)

/* Such as Fortran's threadprivate arrays: glibc takes it out of every thread's stack. */
static __thread char much[254000];

static char dir[64];
static int mask;
static _Atomic bool over;

static void *make(uint64_t id)
{
	void *context;

	inspector_init(&(struct inspector_comm){ .api = 7, .words = { .id = id, .nranks = 2, .name = "c" } }, &context,
		       &mask);
	return context;
}

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
	uint64_t end = clock_ns(CLOCK_MONOTONIC) + 5000000000ull;
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

	ok(took_ms <= 150, "the last destroy waits for little (%llu ms)", (unsigned long long)took_ms);
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
	ok(zeros == 0, "making a communicator does not stop the measuring of others (%llu)", (unsigned long long)zeros);
	inspector_finalize(mine);
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
	pid_t child = fork();

	if (!child)
		exit(0); /* the parent's destructor runs here, too */
	ok(child_status(child) == 0 && inspector_track.box->header->state == BOX_LIVE,
	   "its exit leaves the parent's box alone");
	inspector_finalize(mine);
	ok(inspector_track.box->header->state == BOX_FINALIZED, "which the parent finalizes");
}

int main(void)
{
	char command[128];

	snprintf(dir, sizeof(dir), "/dev/shm/nccl-inspector-test-XXXXXX");
	if (!mkdtemp(dir))
		return 1;
	setenv("NCCL_INSPECTOR_ENABLE", "1", 1);
	setenv("NCCL_INSPECTOR_RUN_DIR", dir, 1);
	setenv("NCCL_INSPECTOR_PROM_DUMP", "1", 1);
	setenv("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "100000", 1);
	test_life();
	test_the_mask_of_others();
	test_children();
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command) || done_testing();
}
