/* SPDX-License-Identifier: Apache-2.0 */
/* base/thread.h - the life of a background thread: started by the first communicator, told to stop by the last.
 *
 * It runs at low priority, blocks all signals and has a small stack. Nobody who waits for its end waits for long: one
 * that is stuck on a dead file system is left alone, and goes on when it comes free and was started again meanwhile.
 */
#ifndef NCCL_INSPECTOR_BASE_THREAD_H
#define NCCL_INSPECTOR_BASE_THREAD_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct thread {
	pthread_mutex_t lock; /* of the two words below; held for no longer than it takes to look at them */
	pthread_cond_t wake, stopped;
	_Atomic bool running;
	bool stop;
	void *(*main)(void *argument);
	void *argument;
	uint64_t counted_cpu_ns; /* the thread's */
};

/* Prepares; starts nothing. */
void thread_init(struct thread *thread, void *(*main)(void *argument), void *argument);
/* Starts the thread unless it runs. Returns 0 or -errno. */
int thread_start(struct thread *thread);
/* Asks for a last round, after which the thread ends by itself. */
void thread_ask_to_stop(struct thread *thread);
/* The same from where the lock may be held by the very caller (exit() in a signal handler). False: try again. */
bool thread_try_to_stop(struct thread *thread);
/* Waits for that end until then (CLOCK_MONOTONIC). */
void thread_wait(struct thread *thread, uint64_t due_ns);
/* At exit: asks for the last round and waits for it until then (CLOCK_MONOTONIC). Waits for no lock. */
void thread_close(struct thread *thread, uint64_t due_ns);

/* For the thread itself. Sleeps until then (CLOCK_MONOTONIC); true: asked to stop. */
bool thread_sleep(struct thread *thread, uint64_t due_ns);
/* Says that the last round is done. False when a new communicator came meanwhile: go on. */
bool thread_end(struct thread *thread);
/* CPU time that it has used since it asked last. */
uint64_t thread_cpu_ns(struct thread *thread);

#endif
