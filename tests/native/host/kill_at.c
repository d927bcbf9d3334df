// SPDX-License-Identifier: Apache-2.0
/* kill_at.c - runs a program and kills it (SIGKILL) at one of its system calls.
 *
 *   kill_at COUNT alone|group PROGRAM [ARGUMENT]...
 *
 * COUNT: how often it may stop before or after a system call of its own, from the exec on; what its
 * children do does not count. alone: only the program dies, and its children end as they like.
 * group: its whole process group dies, as when slurmd gives up. Either way this returns when all of
 * them are gone. Exit status 0: it was killed; 1: it had ended by itself before; 2: cannot do it.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static void start(char **argv)
{
	if (setsid() < 0 || ptrace(PTRACE_TRACEME, 0, NULL, NULL))
		_exit(2);
	execv(argv[0], argv);
	_exit(2);
}

/* Lets the program go on to its stop number `count`; false when it ends before. */
static bool reach(pid_t pid, long count)
{
	int status;

	for (long stops = 0; waitpid(pid, &status, __WALL) == pid && WIFSTOPPED(status);) {
		int pending = WSTOPSIG(status);

		/* Its own signals, a child's end for one, are passed on; our stops are SIGTRAP. */
		if (pending == SIGTRAP && stops++ == count)
			return true;
		pending = pending == SIGTRAP ? 0 : pending;
		if (ptrace(PTRACE_SYSCALL, pid, NULL, pending))
			return false;
	}
	return false;
}

int main(int argc, char **argv)
{
	bool reached;
	pid_t pid;

	/* The children of a killed program become ours, so that we can wait for them. */
	if (argc < 4 || prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))
		return 2;
	pid = fork();
	if (pid < 0)
		return 2;
	if (!pid)
		start(argv + 3);
	reached = reach(pid, strtol(argv[1], NULL, 10));
	if (reached)
		kill(strcmp(argv[2], "group") ? pid : -pid, SIGKILL);
	while (waitpid(-1, NULL, __WALL) > 0 || errno == EINTR)
		;
	return reached ? 0 : 1;
}
