/* SPDX-License-Identifier: Apache-2.0 */
#include "fail.h"

#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static _Atomic int my_rank = -1;
static const char *_Atomic cleanup_file;
static const char *_Atomic cleanup_dir;

void fail_set_rank(int rank)
{
	atomic_store(&my_rank, rank);
}

void fail_set_cleanup(const char *file, const char *dir)
{
	atomic_store(&cleanup_dir, dir);
	atomic_store(&cleanup_file, file);
}

void fail_cleanup(void)
{
	const char *file = atomic_exchange(&cleanup_file, NULL);

	if (!file)
		return;
	unlink(file);
	rmdir(atomic_load(&cleanup_dir));
}

static void on_signal(int number)
{
	fail_cleanup();
	/* SA_RESETHAND put the default action back: the status says which signal it was. */
	raise(number);
}

void fail_catch_signals(void)
{
	struct sigaction action = { .sa_handler = on_signal };

	/* SA_NODEFER: raise() in the handler must not leave the signal pending for ever. */
	action.sa_flags = (int)(SA_RESETHAND | SA_NODEFER);
	sigemptyset(&action.sa_mask);
	sigaction(SIGTERM, &action, NULL);
	sigaction(SIGINT, &action, NULL);
}

void die(const char *fmt, ...)
{
	char text[512];
	va_list args;
	int rank = atomic_load(&my_rank);

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (rank >= 0)
		fprintf(stderr, "nccl-standin: rank %d: %s\n", rank, text);
	else
		fprintf(stderr, "nccl-standin: %s\n", text);
	fail_cleanup();
	_exit(1);
}
