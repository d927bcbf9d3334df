/* SPDX-License-Identifier: Apache-2.0 */
/* play.c - plays the ranks of a simulated job to the profiler plugin in virtual time:
 *
 *	play AT_ONCE PLUGIN CUDA SCRIPT...
 *
 * A process for each script, AT_ONCE of them side by side. Status 0: all scripts were played to
 * their ends (a rank that is to be killed kills itself there); 3: this machine cannot do it. Says
 * on standard output how often threads took turns; what the plugin logs goes to standard error.
 */
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rank.h"

#define RANK_S 600 /* of real time: one that takes longer is stuck */

static struct rank_told *told;
static pid_t *pids;
static int scripts;

static void start(int i, char **argv)
{
	pid_t parent = getpid(), pid;

	fflush(stdout);
	pid = fork();
	if (pid < 0) {
		perror("fork");
		exit(2);
	}
	if (pid) {
		pids[i] = pid;
		return;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(2);
	alarm(RANK_S);
	rank_play(argv[2], argv[3], argv[4 + i], &told[i]);
}

/* Returns the status to end with. */
static int judge(int i, int status, char **argv)
{
	bool ended = WIFEXITED(status) && !WEXITSTATUS(status);
	bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;

	if (told[i].done && (ended || killed))
		return 0;
	fprintf(stderr, "%s: rank %d was not played: %s %d\n", argv[4 + i], told[i].procid,
	        WIFSIGNALED(status) ? "signal" : "status",
	        WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
	return WIFEXITED(status) && WEXITSTATUS(status) == 3 ? 3 : 2;
}

static int await_one(char **argv)
{
	int status, i = 0;
	pid_t pid = wait(&status);

	while (i < scripts && pids[i] != pid)
		i++;
	return i < scripts ? judge(i, status, argv) : 2;
}

int main(int argc, char **argv)
{
	int at_once = argc > 1 ? atoi(argv[1]) : 0, running = 0, result = 0;
	uint64_t turns = 0;

	if (argc < 5 || at_once < 1) {
		fprintf(stderr, "usage: play AT_ONCE PLUGIN CUDA SCRIPT...\n");
		return 2;
	}
	scripts = argc - 4;
	told = mmap(NULL, (size_t)scripts * sizeof(*told), PROT_READ | PROT_WRITE,
	            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pids = calloc((size_t)scripts, sizeof(*pids));
	for (int i = 0; (i < scripts && !result) || running;) {
		if (i < scripts && !result && running < at_once) {
			start(i++, argv);
			running++;
			continue;
		}
		int one = await_one(argv);

		running--;
		result = result ? result : one;
	}
	for (int i = 0; i < scripts; i++)
		turns += told[i].turns;
	printf("{\"turns\":%llu}\n", (unsigned long long)turns);
	return result;
}
