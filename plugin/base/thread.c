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

void worker_init(struct worker *worker, void *(*main)(void *argument), void *argument)
{
	pthread_condattr_t monotonic;

	worker->main = main;
	worker->argument = argument;
	pthread_mutex_init(&worker->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&worker->wake, &monotonic);
	pthread_cond_init(&worker->stopped, &monotonic);
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

static void *worker_main(void *argument)
{
	struct worker *worker = argument;

	worker->counted_cpu_ns = 0; /* its clock is new with the thread */
	be_nice();
	return worker->main(worker->argument);
}

/* glibc takes the program's thread-local data out of the stack, and some programs have much of it. */
static size_t stack_bytes(const pthread_attr_t *attributes)
{
	size_t (*minimum)(const pthread_attr_t *) =
		(size_t(*)(const pthread_attr_t *))dlsym(RTLD_DEFAULT, "__pthread_get_minstack");

	return STACK_BYTES + (minimum ? minimum(attributes) : 3 * STACK_BYTES);
}

/* The thread must not run the application's signal handlers: it blocks all signals from birth. */
static int start_thread(struct worker *worker)
{
	pthread_attr_t attributes;
	sigset_t all, old;
	pthread_t thread;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, stack_bytes(&attributes));
	error = pthread_create(&thread, &attributes, worker_main, worker);
	pthread_attr_destroy(&attributes);
	if (error) {
		error = pthread_create(&thread, NULL, worker_main, worker);
		if (!error)
			pthread_detach(thread);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -error;
}

int worker_start(struct worker *worker)
{
	int error = 0;

	pthread_mutex_lock(&worker->lock);
	worker->stop = false;
	if (!worker->running) {
		error = start_thread(worker);
		worker->running = !error;
	}
	pthread_mutex_unlock(&worker->lock);
	return error;
}

void worker_ask_to_stop(struct worker *worker)
{
	pthread_mutex_lock(&worker->lock);
	worker->stop = true;
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
}

bool worker_try_to_stop(struct worker *worker)
{
	if (pthread_mutex_trylock(&worker->lock))
		return false;
	worker->stop = true;
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->lock);
	return true;
}

void worker_wait(struct worker *worker, uint64_t due_ns)
{
	struct timespec due = { (time_t)(due_ns / 1000000000u), (long)(due_ns % 1000000000u) };
	int error = 0;

	pthread_mutex_lock(&worker->lock);
	while (worker->running && worker->stop && error != ETIMEDOUT)
		error = pthread_cond_timedwait(&worker->stopped, &worker->lock, &due);
	pthread_mutex_unlock(&worker->lock);
}

void worker_close(struct worker *worker, uint64_t due_ns)
{
	struct timespec pause = { 0, 500000 };
	bool asked = false;

	while (atomic_load(&worker->running) && clock_ns(CLOCK_MONOTONIC) < due_ns) {
		asked = asked || worker_try_to_stop(worker);
		nanosleep(&pause, NULL);
	}
}

bool worker_sleep(struct worker *worker, uint64_t due_ns)
{
	struct timespec due = { (time_t)(due_ns / 1000000000u), (long)(due_ns % 1000000000u) };
	int error = 0;
	bool stop;

	pthread_mutex_lock(&worker->lock);
	while (!worker->stop && error != ETIMEDOUT)
		error = pthread_cond_timedwait(&worker->wake, &worker->lock, &due);
	stop = worker->stop;
	pthread_mutex_unlock(&worker->lock);
	return stop;
}

bool worker_end(struct worker *worker)
{
	bool end;

	pthread_mutex_lock(&worker->lock);
	end = worker->stop;
	if (end) {
		worker->running = false;
		pthread_cond_broadcast(&worker->stopped);
	}
	pthread_mutex_unlock(&worker->lock);
	return end;
}

uint64_t worker_cpu_ns(struct worker *worker)
{
	uint64_t before = worker->counted_cpu_ns;

	worker->counted_cpu_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	return worker->counted_cpu_ns - before;
}
