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

#ifdef __SANITIZE_THREAD__
#define EXIT_MS 1200 /* it gives other threads a second to report */
#else
#define EXIT_MS 200
#endif

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

static void test_exit(void)
{
	int status;
	uint64_t took = exit_ms(NOTHING, &status);

	ok(!status && took < 80 && !count("*.prom") && !count(".*.tmp"),
	   "a process that exits leaves nothing (%llu ms)", (unsigned long long)took);
	took = exit_ms(RENAME, &status);
	ok(!status && took < 120 && !count("*.prom") && !count(".*.tmp"),
	   "nor one that was just writing (%llu ms)", (unsigned long long)took);
	took = exit_ms(UNLINK, &status);
	ok(!status && took < EXIT_MS, "one whose directory hangs exits all the same (%llu ms)",
	   (unsigned long long)took);
	ok(count("*.prom") == 1, "and its files stay: nobody could take them away");
}

static void test_life(void)
{
	char command[128];

	snprintf(command, sizeof(command), "rm -rf %s/deep", dir);
	if (system(command))
		exit(1);
	atomic_store(&hanging, MKDIR);
	uint64_t began = now_ms();
	void *mine = make(1);
	uint64_t took = now_ms() - began;

	ok(mine && took < 500, "the first communicator does not wait for the directory (%llu ms)",
	   (unsigned long long)took);
	ok(wait_until_stuck(), "which hangs");
	began = now_ms();
	inspector_finalize(mine);
	took = now_ms() - began;
	ok(took < 200, "the last finalize waits for little (%llu ms)", (unsigned long long)took);
	mine = make(1);
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
