// SPDX-License-Identifier: Apache-2.0
#include "hooks.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KILLED_MS 500u /* how long to wait for the end of a killed child */
#define NAP_MAX_US 5000u

const char *const hooks_variables[] = {
	"SPANK_NCCL_INSPECTOR",
	"SLURM_JOB_ID",
	"SLURM_JOB_UID",
	"SLURM_JOB_GID",
	"SLURM_JOB_USER",
	"SLURM_JOB_ACCOUNT",
	"SLURM_JOB_PARTITION",
	"SLURMD_NODENAME",
	"SLURM_JOB_NODELIST",
	"SLURM_NODELIST",
	"SLURM_JOB_NUM_NODES",
	"SLURM_CLUSTER_NAME",
	"SLURM_JOB_GPUS",
	"SLURM_JOB_RESTART_COUNT",
	"SLURM_JOB_START_TIME", /* these two from Slurm 23.02 on */
	"SLURM_JOB_END_TIME",
	"SLURM_HET_JOB_ID",
	"SLURM_JOB_WORK_DIR",
	"SLURM_JOB_QOS",
	NULL,
};

#define VARIABLES (sizeof(hooks_variables) / sizeof(*hooks_variables))

static uint64_t now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_nsec / 1000u;
}

/* Whether the child has ended; it is not reaped. If the host ignores SIGCHLD, the kernel removes
 * the child when it ends, and waitid says ECHILD. */
static bool has_ended(pid_t pid)
{
	siginfo_t info = { .si_pid = 0 };

	if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT))
		return errno == ECHILD;
	return info.si_pid == pid;
}

/* Returns false if the child has not ended after `ms` milliseconds. It polls, because a signal
 * handler or signal mask would change the host process. */
static bool wait_for(pid_t pid, unsigned int ms)
{
	uint64_t deadline = now_us() + (uint64_t)ms * 1000u;
	struct timespec nap = { 0, 200000 };

	while (!has_ended(pid)) {
		if (now_us() >= deadline)
			return false;
		nanosleep(&nap, NULL);
		if (nap.tv_nsec < (long)NAP_MAX_US * 1000)
			nap.tv_nsec += nap.tv_nsec / 4;
	}
	return true;
}

/* slurmd blocks or ignores some signals, and the child inherits that. */
static void restore_signals(void)
{
	sigset_t none;

	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
}

int hooks_run(void (*work)(void *arg), void *arg, unsigned int deadline_ms)
{
	pid_t pid = fork();
	int status = 0;
	bool late;

	if (pid < 0)
		return -errno;
	if (!pid) {
		setpgid(0, 0);
		restore_signals();
		work(arg);
		_exit(0);
	}
	setpgid(pid, pid); /* parent and child both do it, because either may run first */
	late = !wait_for(pid, deadline_ms);
	/* The child is not reaped yet, so no other process group can have its number. */
	kill(-pid, SIGKILL);
	if (late && !wait_for(pid, KILLED_MS))
		return -ETIME;
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	return late ? -ETIME : status;
}

static int highest_descriptor(void)
{
	DIR *dir = opendir("/proc/self/fd");
	const struct dirent *entry;
	int highest = dir ? 2 : 1023;

	while (dir && (entry = readdir(dir))) {
		int fd = (int)strtol(entry->d_name, NULL, 10);

		if (fd > highest)
			highest = fd;
	}
	if (dir)
		closedir(dir);
	return highest;
}

/* The script must have nothing to read, and nobody may wait for the end of its output. */
static void shut_descriptors(void)
{
	int highest = highest_descriptor() + 1; /* /dev/null may get the next one */
	int null = open("/dev/null", O_RDWR | O_NOCTTY);

	for (int fd = 0; fd <= 2; fd++)
		if (fd != null && dup2(null, fd) < 0)
			close(fd);
	for (int fd = 3; fd <= highest; fd++)
		close(fd);
}

static char *find_variable(const char *name)
{
	size_t len = strlen(name);

	for (char **entry = environ; entry && *entry; entry++)
		if (!strncmp(*entry, name, len) && (*entry)[len] == '=')
			return *entry;
	return NULL;
}

int hooks_become(char *path)
{
	char *env[VARIABLES], *argv[] = { path, NULL };
	size_t found = 0;

	if (access(path, X_OK))
		return -errno;
	for (size_t i = 0; hooks_variables[i]; i++)
		if ((env[found] = find_variable(hooks_variables[i])))
			found++;
	env[found] = NULL;
	shut_descriptors();
	if (chdir("/"))
		_exit(126);
	umask(022);
	execve(path, argv, env);
	_exit(127);
}
