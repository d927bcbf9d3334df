// SPDX-License-Identifier: Apache-2.0
#include "task_end.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "settings.h"
#include "taskenv.h"

/* Opens the job's file; it is root's, in a directory of root's, and users cannot put a link there.
 * Returns -1 if there is no such directory, or no room for another line. */
static int open_file(const char *run_dir, uint32_t job)
{
	char path[SETTINGS_TEXT_BYTES + sizeof("/jobs/4294967295/" TASK_ENDS_FILE)];
	struct stat status;
	int fd;

	snprintf(path, sizeof(path), "%s/jobs/%" PRIu32 "/" TASK_ENDS_FILE, run_dir, job);
	fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
	if (fd < 0)
		return -1;
	if (fstat(fd, &status) || !S_ISREG(status.st_mode) || status.st_uid != geteuid() ||
	    status.st_size >= TASK_ENDS_BYTES_MAX) {
		close(fd);
		return -1;
	}
	return fd;
}

void task_end_keep(const char *run_dir, const struct task_end *end)
{
	char line[128], step[16] = "batch";
	struct timespec now;
	int len, fd;

	clock_gettime(CLOCK_REALTIME, &now);
	fd = open_file(run_dir, end->job);
	if (fd < 0)
		return;
	if (end->step != TASKENV_BATCH_STEP)
		snprintf(step, sizeof(step), "%" PRIu32, end->step);
	len = snprintf(line, sizeof(line), "%s %" PRIu32 " %ld %d %" PRIu64 "\n", step, end->task,
	               (long)end->pid, end->status,
	               (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
	/* A line that is written in part, because the tmpfs is full, is refused by its reader. */
	if (write(fd, line, (size_t)len) < 0)
		(void)0;
	close(fd);
}
