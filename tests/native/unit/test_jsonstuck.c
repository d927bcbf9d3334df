/* SPDX-License-Identifier: Apache-2.0 */
/* The user's directory is on a file system that hangs: writes of lines never return, and everything
 * else goes on. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "whole_plugin.h"

static char dir[64], lines[96];
static _Atomic bool hangs, stuck;

/* Before the C library's. */
ssize_t write(int fd, const void *data, size_t length)
{
	char link[64], path[128] = "";

	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	if (atomic_load(&hangs) && readlink(link, path, sizeof(path) - 1) > 0 &&
	    strstr(path, ".log")) {
		atomic_store(&stuck, true);
		for (;;)
			pause();
	}
	return syscall(SYS_write, fd, data, length);
}

static uint64_t now_ms(void)
{
	return clock_ns(CLOCK_MONOTONIC) / 1000000;
}

static void nap(void)
{
	nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
}

/* Inode of the file with the metrics, which is a new one each time; 0 without. */
static ino_t metrics(void)
{
	char pattern[96];
	struct stat found = { 0 };
	glob_t paths;

	snprintf(pattern, sizeof(pattern), "%s/*.prom", dir);
	if (glob(pattern, 0, NULL, &paths) == 0) {
		if (stat(paths.gl_pathv[0], &found))
			found.st_ino = 0;
		globfree(&paths);
	}
	return found.st_ino;
}

static bool wait_for_new_metrics(ino_t old)
{
	for (uint64_t until = now_ms() + 30000; now_ms() < until; nap()) {
		ino_t now = metrics();

		if (now && now != old)
			return true;
	}
	return false;
}

static uint64_t finalize_ms(void *context)
{
	uint64_t from = now_ms();

	inspector_finalize(context);
	return now_ms() - from;
}

static void play(void)
{
	void *mine = make(1);
	uint64_t took;

	operation(mine);
	wait_for_new_metrics(0);
	atomic_store(&hangs, true);
	operation(mine);
	for (uint64_t until = now_ms() + 30000; !atomic_load(&stuck) && now_ms() < until; nap())
		;
	ok(atomic_load(&stuck), "the lines hang");
	ok(wait_for_new_metrics(metrics()) && wait_for_new_metrics(metrics()), "the metrics go on");
	for (int i = 0; i < 20000; i++)
		operation(mine);
	ok(atomic_load(&inspector_track.box->header->dropped[BOX_DROP_JSON]) > 3000,
	   "lines that nobody writes are dropped and counted");
	took = finalize_ms(mine);
	ok(took < 3000, "destroying does not wait for them (%llu ms)", (unsigned long long)took);
	/* On a busy machine later than destroying waits for it. */
	for (uint64_t until = now_ms() + 30000; metrics() && now_ms() < until; nap())
		;
	ok(!metrics(), "and takes the metrics away");
	mine = make(2);
	operation(mine);
	took = finalize_ms(mine);
	ok(took < 3000, "nor does a later communicator (%llu ms)", (unsigned long long)took);
	make(3); /* and an exit with it, which test_c.py waits for */
}

int main(void)
{
	char command[96];

	snprintf(dir, sizeof(dir), "/dev/shm/test_jsonstuck.XXXXXX");
	if (!ok(mkdtemp(dir) != NULL, "a directory"))
		return done_testing();
	snprintf(lines, sizeof(lines), "%s/lines", dir);
	setenv("NCCL_INSPECTOR_ENABLE", "1", 1);
	setenv("NCCL_INSPECTOR_RUN_DIR", dir, 1);
	setenv("NCCL_INSPECTOR_DUMP_DIR", lines, 1);
	setenv("NCCL_INSPECTOR_PROM_DUMP", "1", 1);
	setenv("NCCL_INSPECTOR_JSON", "1", 1);
	setenv("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "100000", 1);
	play();
	snprintf(command, sizeof(command), "rm -r %s", dir);
	ok(system(command) == 0, "swept");
	return done_testing();
}
