/* SPDX-License-Identifier: Apache-2.0 */
/* base/thread.h - the life of a background thread: started by the first communicator, told to stop
 * by the last.
 *
 * It runs at low priority, blocks all signals and has a small stack. Nobody waits long for its end:
 * a thread that is stuck on a dead file system is left alone, and goes on if it comes free and has
 * been started again meanwhile.
 */
#ifndef NCCL_INSPECTOR_BASE_THREAD_H
#define NCCL_INSPECTOR_BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct thread {
	/* Of `running` and `stop`; held for no longer than it takes to look at them. */
	pthread_mutex_t lock;
	pthread_cond_t wake, stopped;
	_Atomic bool running;
	bool stop;
	void *(*main)(void *argument);
	void *argument;
	uint64_t counted_cpu_ns; /* the thread's */
};

/* Prepares a thread that will run `main`; starts nothing. */
void thread_init(struct thread *thread, void *(*main)(void *argument), void *argument);
/* Starts the thread unless it runs. Returns 0 or -errno. Under the inspector's lock. */
int thread_start(struct thread *thread);

/* Asks for a last round, after which the thread ends by itself. */
void thread_ask_to_stop(struct thread *thread);

/* The same for a caller that may hold the thread's lock itself (exit() in a signal handler). False:
 * try again. */
bool thread_try_to_stop(struct thread *thread);

/* Waits for that end, at most until `due_ns` (CLOCK_MONOTONIC). */
void thread_wait(struct thread *thread, uint64_t due_ns);

/* At exit: asks for the last round and waits for it, at most until `due_ns` (CLOCK_MONOTONIC).
 * Waits for no lock. */
void thread_close(struct thread *thread, uint64_t due_ns);

/* The thread itself: sleeps until `due_ns` (CLOCK_MONOTONIC), or until it is asked to stop. Returns
 * whether it was. */
bool thread_sleep(struct thread *thread, uint64_t due_ns);

/* The thread itself: says that the last round is done. False: a new communicator has come
 * meanwhile, so the thread must go on. */
bool thread_end(struct thread *thread);

/* The thread itself: returns the CPU time that it has used since the call before, in ns. */
uint64_t thread_cpu_ns(struct thread *thread);

#endif
