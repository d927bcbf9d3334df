/* SPDX-License-Identifier: Apache-2.0 */
/* still.c - in the place of plugin/base/thread.c and of the C library's clock: see the FUZZ rules
 * of the Makefile. */
#include "still.h"

#include <time.h>

#define REAL_NS 1700000000000000000ull

uint64_t still_now_ns, still_step_ns, still_cpu_ns;
static uint64_t run_until_ns;

int pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void));

/* The list of the C library would grow with every input. */
int pthread_atfork(void (*prepare)(void), void (*parent)(void), void (*child)(void))
{
	(void)prepare;
	(void)parent;
	(void)child;
	return 0;
}

int clock_gettime(clockid_t id, struct timespec *ts)
{
	uint64_t ns = (id == CLOCK_REALTIME ? REAL_NS : 0) + still_now_ns;

	still_now_ns += still_step_ns;
	ts->tv_sec = (time_t)(ns / 1000000000u);
	ts->tv_nsec = (long)(ns % 1000000000u);
	return 0;
}

void still_run(struct thread *worker, uint64_t until_ns)
{
	if (!worker->running)
		return;
	run_until_ns = until_ns;
	worker->main(worker->argument);
}

void thread_init(struct thread *worker, void *(*main)(void *argument), void *argument)
{
	worker->main = main;
	worker->argument = argument;
}

int thread_start(struct thread *worker)
{
	worker->stop = false;
	worker->running = true;
	return 0;
}

void thread_ask_to_stop(struct thread *worker)
{
	worker->stop = true;
}

void thread_wait(struct thread *worker, uint64_t due_ns)
{
	if (worker->stop)
		still_run(worker, due_ns);
	worker->running = false;
}

bool thread_try_to_stop(struct thread *worker)
{
	worker->stop = true;
	return true;
}

void thread_close(struct thread *worker, uint64_t due_ns)
{
	worker->stop = true;
	thread_wait(worker, due_ns);
}

bool thread_sleep(struct thread *worker, uint64_t due_ns)
{
	if (worker->stop || due_ns >= run_until_ns)
		return true;
	if (still_now_ns < due_ns)
		still_now_ns = due_ns;
	return false;
}

bool thread_end(struct thread *worker)
{
	(void)worker;
	return true;
}

uint64_t thread_cpu_ns(struct thread *worker)
{
	(void)worker;
	return still_cpu_ns;
}
