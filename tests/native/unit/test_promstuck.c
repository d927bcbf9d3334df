/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics in the user's own directory, which is on a file system that hangs: NCCL and exit() do not
 * wait for it. */
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "whole_plugin.h"

/* On a busy machine one exit may take longer. One that waits for a file system always does. */
#define TRIES 5

/* By itself TSan sleeps for a second at the exit of a process that still has other threads. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
	return "atexit_sleep_ms=0";
}

enum { NOTHING, MKDIR, UNLINK, RENAME };

static char dir[64];
static _Atomic int hanging;
static _Atomic bool stuck;

static void nap(void)
{
	nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
}

static void hang_at(int call)
{
	while (atomic_load(&hanging) == call) {
		atomic_store(&stuck, true);
		nap();
	}
}

/* The three come before the C library's. */
int mkdir(const char *path, mode_t mode)
{
	hang_at(MKDIR);
	return (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int unlinkat(int dir_fd, const char *path, int flags)
{
	if (*path != '.')
		hang_at(UNLINK);
	return (int)syscall(SYS_unlinkat, dir_fd, path, flags);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
	if (atomic_load(&hanging) == RENAME) { /* slow */
		atomic_store(&stuck, true);
		for (unsigned i = 0; i < 20; i++)
			nap();
	}
	return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

static uint64_t now_ms(void)
{
	return clock_ns(CLOCK_MONOTONIC) / 1000000;
}

static size_t count(const char *pattern)
{
	char path[128];
	glob_t found;

	snprintf(path, sizeof(path), "%s/deep/%s", dir, pattern);
	size_t files = glob(path, 0, NULL, &found) ? 0 : found.gl_pathc;

	globfree(&found);
	return files;
}

static bool wait_for_files(void)
{
	for (uint64_t end = now_ms() + 20000; !count("*.prom") && now_ms() < end;)
		nap();
	return count("*.prom") == 1;
}

static bool wait_until_stuck(void)
{
	for (uint64_t end = now_ms() + 20000; !atomic_load(&stuck) && now_ms() < end;)
		nap();
	return atomic_load(&stuck);
}

/* A process that exits without an end of its communicator, while that hangs; how long the exit
 * takes. */
static uint64_t exit_ms(int call, int *status)
{
	int word[2];
	uint64_t began = 0;

	if (pipe(word))
		exit(1);
	fflush(stdout);
	pid_t child = fork();

	if (!child) {
		bool good = make(1) && wait_for_files();

		atomic_store(&hanging, call);
		good = good && (call != RENAME || wait_until_stuck());
		began = now_ms();
		good = write(word[1], &began, sizeof(began)) == sizeof(began) && good;
		exit(good ? 0 : 9);
	}
	close(word[1]);
	if (read(word[0], &began, sizeof(began)) != sizeof(began))
		exit(1);
	close(word[0]);
	waitpid(child, status, 0);
	return now_ms() - began;
}

static bool leaves_nothing(void)
{
	return !count("*.prom") && !count(".*.tmp");
}

static bool leaves_its_file(void)
{
	return count("*.prom") == 1;
}

static void make_anew(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s/deep", dir);
	if (system(command))
		exit(1);
}

static void test_exit_at(int call, uint64_t limit_ms, bool (*is_right)(void), const char *what)
{
	uint64_t took = 0;
	bool good = false;
	int status;

	for (unsigned i = 0; i < TRIES && !good; i++) {
		make_anew();
		took = exit_ms(call, &status);
		good = !status && took < limit_ms && is_right();
	}
	ok(good, "%s (exit status %x, %llu ms)", what, (unsigned)status, (unsigned long long)took);
}

static void test_exit(void)
{
	test_exit_at(NOTHING, 80, leaves_nothing, "a process that exits leaves nothing");
	test_exit_at(RENAME, 120, leaves_nothing, "nor does one that was just writing");
	test_exit_at(UNLINK, 200, leaves_its_file,
	             "one whose directory hangs exits all the same, and its file stays: nobody "
	             "could take it away");
}

static uint64_t begin_ms(void **comm)
{
	uint64_t began = now_ms();

	*comm = make(1);
	return now_ms() - began;
}

static uint64_t finalize_ms(void *comm)
{
	uint64_t began = now_ms();

	inspector_finalize(comm);
	return now_ms() - began;
}

static void test_life(void)
{
	void *mine;

	make_anew();
	atomic_store(&hanging, MKDIR);
	uint64_t took = begin_ms(&mine);

	ok(mine && took < 500, "the first communicator does not wait for the directory (%llu ms)",
	   (unsigned long long)took);
	ok(wait_until_stuck(), "which hangs");
	took = finalize_ms(mine);
	for (unsigned i = 1; i < TRIES && took >= 200; i++) {
		begin_ms(&mine);
		took = finalize_ms(mine);
	}
	ok(took < 200, "the last finalize waits for little (%llu ms)", (unsigned long long)took);
	begin_ms(&mine);
	ok(chdir("/") == 0, "the process goes elsewhere");
	atomic_store(&hanging, NOTHING);
	ok(wait_for_files(), "when it comes back the metrics are there");
	inspector_finalize(mine);
	ok(!count("*.prom"), "and go with the last communicator");
}

int main(void)
{
	char command[128];

	snprintf(dir, sizeof(dir), "/dev/shm/nccl-inspector-test-XXXXXX");
	if (!mkdtemp(dir) || chdir(dir))
		return 1;
	setenv("NCCL_INSPECTOR_ENABLE", "1", 1);
	unsetenv("NCCL_INSPECTOR_RUN_DIR");
	setenv("NCCL_INSPECTOR_DUMP_DIR", "deep", 1);
	setenv("NCCL_INSPECTOR_PROM_DUMP", "1", 1);
	setenv("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "100000", 1);
	test_exit();
	test_life();
	snprintf(command, sizeof(command), "rm -rf %s", dir);
	return system(command) || done_testing();
}
