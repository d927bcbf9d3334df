/* SPDX-License-Identifier: Apache-2.0 */
/* A hook in a child process: what bounds it, what it gets, and what is left of it. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "hooks.h"
#include "tap.h"

#define SOON_MS 200u
#define LATER_MS 20000u

static char missing[] = "/nonexistent/hook", folder[] = "/tmp/nccl-inspector-hooks-XXXXXX",
	    script[64], note[64];

static unsigned int now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (unsigned int)(now.tv_sec * 1000 + now.tv_nsec / 1000000);
}

static void write_script(const char *text)
{
	FILE *file;

	unlink(script);
	unlink(note);
	file = fopen(script, "w");
	if (!file)
		abort();
	fprintf(file, "#!/bin/sh\n%s\n", text);
	fclose(file);
	if (chmod(script, 0755))
		abort();
}

static const char *read_note(void)
{
	static char text[8192];
	FILE *file = fopen(note, "r");

	text[0] = '\0';
	if (file) {
		text[fread(text, 1, sizeof(text) - 1, file)] = '\0';
		fclose(file);
	}
	return text;
}

static void become(void *arg)
{
	int rc = hooks_become(arg);

	_exit(rc == -ENOENT ? 99 : 98);
}

static void crash(void *arg)
{
	(void)arg;
	raise(SIGSEGV);
}

static void hang(void *arg)
{
	(void)arg;
	for (;;)
		pause();
}

static void nothing(void *arg)
{
	(void)arg;
}

static void ends(void)
{
	unsigned int begun;
	int rc;

	write_script("exit 0");
	ok(hooks_run(become, script, LATER_MS) == 0, "a script that ends well");
	write_script("exit 3");
	rc = hooks_run(become, script, LATER_MS);
	ok(WIFEXITED(rc) && WEXITSTATUS(rc) == 3, "a script that fails is told from others");
	rc = hooks_run(crash, NULL, LATER_MS);
	ok(rc > 0 && !(WIFEXITED(rc) && !WEXITSTATUS(rc)), "a crash is the child's alone");
	begun = now_ms();
	ok(hooks_run(hang, NULL, SOON_MS) == -ETIME, "what hangs is killed");
	ok(now_ms() - begun >= SOON_MS && now_ms() - begun < LATER_MS, "at the deadline");
	ok(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD, "no child is left");
	rc = hooks_run(become, missing, LATER_MS);
	ok(WEXITSTATUS(rc) == 99, "a script that is not there is -ENOENT");
	write_script("exit 0");
	chmod(script, 0644);
	if (geteuid())
		return;
	ok(WEXITSTATUS(hooks_run(become, script, LATER_MS)) == 98,
	   "nor one that is not executable");
}

/* Whether a process that ignores what it can, and has let go of everything, is gone soon. */
static bool gone(pid_t pid)
{
	char path[32], text[256] = "";
	const char *state;
	FILE *file;

	for (int looks = 0; looks < 100; looks++) {
		snprintf(path, sizeof(path), "/proc/%d/stat", pid);
		file = fopen(path, "r");
		if (!file)
			return true;
		state = fgets(text, sizeof(text), file) ? strrchr(text, ')') : NULL;
		fclose(file);
		if (state && state[2] == 'Z')
			return true;
		usleep(20000);
	}
	return false;
}

static void leftovers(void)
{
	char text[256];
	int pid;

	snprintf(text, sizeof(text),
	         "(trap '' TERM HUP INT; exec sleep 1000) & echo $! >%s; exit 0", note);
	write_script(text);
	ok(hooks_run(become, script, LATER_MS) == 0, "a script that leaves a process");
	pid = atoi(read_note());
	ok(pid > 1 && gone(pid), "loses it at once");
	snprintf(text, sizeof(text), "trap '' TERM; sleep 1000 & echo $! >%s; wait", note);
	write_script(text);
	ok(hooks_run(become, script, SOON_MS * 5) == -ETIME, "one that hangs with a process");
	pid = atoi(read_note());
	ok(pid > 1 && gone(pid), "loses it, too");
}

static void environment(void)
{
	char text[256];
	const char *got;

	setenv("SLURM_JOB_ID", "42", 1);
	setenv("SPANK_NCCL_INSPECTOR", "prom", 1);
	setenv("SPANK_PATH", "/tmp/evil", 1);
	setenv("_SLURM_SPANK_OPTION_x_y", "evil", 1);
	setenv("LD_PRELOAD_", "evil", 1);
	setenv("NCCL_INSPECTOR_TEST_RUN_DIR", "/tmp/evil", 1);
	setenv("BASH_ENV", "/tmp/evil", 1);
	setenv("ENV", "/tmp/evil", 1);
	snprintf(text, sizeof(text), "tr '\\0' '\\n' </proc/$$/environ >%s; pwd >>%s; umask >>%s",
	         note, note, note);
	write_script(text);
	umask(0);
	hooks_run(become, script, LATER_MS);
	umask(022);
	got = read_note();
	ok(strstr(got, "SLURM_JOB_ID=42\n") && strstr(got, "SPANK_NCCL_INSPECTOR=prom\n"),
	   "the script has its variables");
	ok(!strstr(got, "evil") && !strstr(got, "SPANK_PATH"), "and no others");
	ok(strstr(got, "\n/\n0022\n") != NULL, "the root directory and a safe umask");
}

static void descriptors(void)
{
	int low = open("/etc/passwd", O_RDONLY), high = fcntl(low, F_DUPFD, 700);
	int in = dup(0);
	char text[512];

	snprintf(text, sizeof(text),
	         "for f in /proc/$$/fd/*; do readlink $f; done | grep -vx %s >%s; "
	         "readlink /proc/$$/fd/1 >>%s",
	         script, note, note);
	write_script(text);
	close(0); /* as slurmstepd has it */
	hooks_run(become, script, LATER_MS);
	ok(!strstr(read_note(), "passwd"), "no descriptor is inherited, however high");
	ok(!strncmp(read_note(), "/dev/null\n", 10) && strstr(read_note(), "\n/dev/null\n"),
	   "input and output are nothing, even where the host's are closed");
	dup2(in, 0);
	close(in);
	close(low);
	close(high);
}

/* 32 and 33: the C library keeps them to itself, and make leaves them ignored. */
#define OF_GLIBC (3ull << 31)

static void signals(void)
{
	sigset_t all;
	char text[256];

	snprintf(text, sizeof(text), "exec grep '^Sig\\(Blk\\|Ign\\)' /proc/self/status >%s", note);
	write_script(text);
	sigfillset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	signal(SIGINT, SIG_IGN);
	signal(SIGPIPE, SIG_IGN);
	hooks_run(become, script, LATER_MS);
	sigemptyset(&all);
	sigprocmask(SIG_SETMASK, &all, NULL);
	unsigned long long blocked = 1, ignored = 1;

	ok(sscanf(read_note(), "SigBlk: %llx SigIgn: %llx", &blocked, &ignored) == 2 && !blocked &&
	       !(ignored & ~OF_GLIBC),
	   "no signal is blocked or ignored (%llx, %llx)", blocked, ignored);
	signal(SIGCHLD, SIG_IGN);
	ok(hooks_run(nothing, NULL, LATER_MS) == 0,
	   "a host that ignores SIGCHLD is not waited for");
	signal(SIGCHLD, SIG_DFL);
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0); /* or a sanitizer writes it once more in each child */
	if (!mkdtemp(folder))
		return 1;
	snprintf(script, sizeof(script), "%s/hook", folder);
	snprintf(note, sizeof(note), "%s/note", folder);
	ends();
	leftovers();
	environment();
	descriptors();
	signals();
	unlink(script);
	unlink(note);
	rmdir(folder);
	return done_testing();
}
