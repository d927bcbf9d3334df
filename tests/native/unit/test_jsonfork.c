/* SPDX-License-Identifier: Apache-2.0 */
/* JSON lines and fork: the child inherits the parent's buffers and must write none of them. */
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "whole_plugin.h"

static char dir[64];

static unsigned count_lines(void)
{
	char pattern[96], line[4096];
	unsigned lines = 0;
	glob_t found;

	snprintf(pattern, sizeof(pattern), "%s/*.log", dir);
	if (glob(pattern, 0, NULL, &found))
		return 0;
	for (size_t i = 0; i < found.gl_pathc; i++) {
		FILE *file = fopen(found.gl_pathv[i], "r");

		while (file && fgets(line, sizeof(line), file))
			lines++;
		if (file)
			fclose(file);
	}
	globfree(&found);
	return lines;
}

/* Finalizing waits for the writer's thread, but not longer than an application can: in an emulator
 * it may come late. */
static bool lines_come(unsigned wanted)
{
	for (unsigned tries = 0; count_lines() < wanted && tries < 500; tries++)
		usleep(10000);
	return count_lines() == wanted;
}

static int status_of(pid_t child)
{
	int status;

	return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int main(void)
{
	char command[96];
	int child_mask = 0;

	snprintf(dir, sizeof(dir), "/dev/shm/test_jsonfork.XXXXXX");
	if (!ok(mkdtemp(dir) != NULL, "a directory"))
		return done_testing();
	setenv("NCCL_INSPECTOR_ENABLE", "1", 1);
	setenv("NCCL_INSPECTOR_DUMP_DIR", dir, 1);
	setenv("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", "30000000", 1);
	unsetenv("NCCL_INSPECTOR_RUN_DIR");
	unsetenv("NCCL_INSPECTOR_PROM_DUMP");

	void *mine = make(1);

	for (int i = 0; i < 5; i++)
		operation(mine);
	fflush(stdout);
	pid_t child = fork();

	if (!child) {
		operation(mine);
		inspector_finalize(mine);
		operation(make_with(&child_mask, 1));
		exit(0); /* with the destructors */
	}
	ok(status_of(child) == 0, "a child ends like any other");
	ok(count_lines() == 0, "and writes nothing");
	operation(mine);
	inspector_finalize(mine);
	ok(lines_come(6), "the parent's lines are written once (%u)", count_lines());
	fflush(stdout);
	child = fork();
	if (!child)
		exit(0);
	ok(status_of(child) == 0 && count_lines() == 6, "nor does a child after that write any");
	mine = make(1);
	operation(mine);
	inspector_finalize(mine);
	ok(lines_come(7), "and a later communicator's lines come too (%u)", count_lines());
	snprintf(command, sizeof(command), "rm -r %s", dir);
	ok(system(command) == 0, "swept");
	return done_testing();
}
