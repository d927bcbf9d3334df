/* SPDX-License-Identifier: Apache-2.0 */
#include "base/thread.h"

#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"

#define STACK_BYTES ((size_t)256 * 1024)
#define NICE 10

void thread_init(struct thread *thread, void *(*main)(void *argument), void *argument)
{
	pthread_condattr_t monotonic;

	thread->main = main;
	thread->argument = argument;
	pthread_mutex_init(&thread->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&thread->wake, &monotonic);
	pthread_cond_init(&thread->stopped, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

/* The application's may be of real time (chrt): nothing of ours comes before anybody's work. */
static void be_nice(void)
{
	const struct sched_param none = { 0 };
	int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;

	if (policy == SCHED_FIFO || policy == SCHED_RR)
		sched_setscheduler(0, SCHED_OTHER, &none);
	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
}

static void *run(void *argument)
{
	struct thread *thread = argument;

	thread->counted_cpu_ns = 0; /* its clock is new with the thread */
	be_nice();
	return thread->main(thread->argument);
}

/* glibc takes the program's thread-local data out of the stack, and some programs have much of
 * it. */
static size_t stack_bytes(const pthread_attr_t *attributes)
{
	size_t (*minimum)(const pthread_attr_t *) =
	    (size_t (*)(const pthread_attr_t *))dlsym(RTLD_DEFAULT, "__pthread_get_minstack");

	return STACK_BYTES + (minimum ? minimum(attributes) : 3 * STACK_BYTES);
}

/* The thread must not run the application's signal handlers: it blocks all signals from birth. */
static int start_thread(struct thread *thread)
{
	pthread_attr_t attributes;
	sigset_t all, old;
	pthread_t started;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, stack_bytes(&attributes));
	error = pthread_create(&started, &attributes, run, thread);
	pthread_attr_destroy(&attributes);
	if (error) {
		error = pthread_create(&started, NULL, run, thread);
		if (!error)
			pthread_detach(started);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -error;
}

int thread_start(struct thread *thread)
{
	int error = 0;

	pthread_mutex_lock(&thread->lock);
	thread->stop = false;
	if (!thread->running) {
		error = start_thread(thread);
		thread->running = !error;
	}
	pthread_mutex_unlock(&thread->lock);
	return error;
}

void thread_ask_to_stop(struct thread *thread)
{
	pthread_mutex_lock(&thread->lock);
	thread->stop = true;
	pthread_cond_signal(&thread->wake);
	pthread_mutex_unlock(&thread->lock);
}

bool thread_try_to_stop(struct thread *thread)
{
	if (pthread_mutex_trylock(&thread->lock))
		return false;
	thread->stop = true;
	pthread_cond_signal(&thread->wake);
	pthread_mutex_unlock(&thread->lock);
	return true;
}

void thread_wait(struct thread *thread, uint64_t due_ns)
{
	struct timespec due = { (time_t)(due_ns / 1000000000u), (long)(due_ns % 1000000000u) };
	int error = 0;

	pthread_mutex_lock(&thread->lock);
	while (thread->running && thread->stop && error != ETIMEDOUT)
		error = pthread_cond_timedwait(&thread->stopped, &thread->lock, &due);
	pthread_mutex_unlock(&thread->lock);
}

void thread_close(struct thread *thread, uint64_t due_ns)
{
	struct timespec pause = { 0, 500000 };
	bool asked = false;

	while (atomic_load(&thread->running) && clock_ns(CLOCK_MONOTONIC) < due_ns) {
		asked = asked || thread_try_to_stop(thread);
		nanosleep(&pause, NULL);
	}
}

bool thread_sleep(struct thread *thread, uint64_t due_ns)
{
	struct timespec due = { (time_t)(due_ns / 1000000000u), (long)(due_ns % 1000000000u) };
	int error = 0;
	bool stop;

	pthread_mutex_lock(&thread->lock);
	while (!thread->stop && error != ETIMEDOUT)
		error = pthread_cond_timedwait(&thread->wake, &thread->lock, &due);
	stop = thread->stop;
	pthread_mutex_unlock(&thread->lock);
	return stop;
}

bool thread_end(struct thread *thread)
{
	bool end;

	pthread_mutex_lock(&thread->lock);
	end = thread->stop;
	if (end) {
		thread->running = false;
		pthread_cond_broadcast(&thread->stopped);
	}
	pthread_mutex_unlock(&thread->lock);
	return end;
}

uint64_t thread_cpu_ns(struct thread *thread)
{
	uint64_t before = thread->counted_cpu_ns;

	thread->counted_cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	return thread->counted_cpu_ns - before;
}
