/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fail.h"
#include "gpuclock.h"
#include "progress.h"
#include "ring.h"

uint64_t gpu_offset_ns;

static struct {
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t launched, idle;
	struct kernel *first, **last;
	unsigned int busy; /* kernels launched and not done */
	bool stopping;
} gpu = { .lock = PTHREAD_MUTEX_INITIALIZER,
          .launched = PTHREAD_COND_INITIALIZER,
          .idle = PTHREAD_COND_INITIALIZER,
          .last = &gpu.first };

static void run_kernel(struct ring_memory *memory, struct kernel *kernel)
{
	if (kernel->compute_ms) {
		sleep_ms(kernel->compute_ms);
		free(kernel);
		return;
	}
	ring_fill(memory, kernel);
	for (int i = 0; i < kernel->n_ops; i++)
		for (int c = 0; c < kernel->ops[i]->n_channels; c++)
			kernel->ops[i]->channels[c].start_ns = gpu_ns();
	for (int i = 0; i < kernel->n_ops; i++)
		progress_gpu_started(kernel->ops[i]);
	while (kernel->stuck)
		pause();
	ring_run(memory, kernel);
	ring_verify(memory, kernel);
	for (int i = 0; i < kernel->n_ops; i++)
		progress_gpu_finished(kernel->ops[i]);
	free(kernel);
}

static struct kernel *take(void)
{
	struct kernel *kernel = gpu.first;

	gpu.first = kernel->next;
	if (!gpu.first)
		gpu.last = &gpu.first;
	return kernel;
}

static void *run(void *unused)
{
	struct ring_memory memory = { 0 };

	(void)unused;
	pthread_setname_np(pthread_self(), "standin GPU");
	pthread_mutex_lock(&gpu.lock);
	for (;;) {
		struct kernel *kernel;

		while (!gpu.first && !gpu.stopping)
			pthread_cond_wait(&gpu.launched, &gpu.lock);
		if (!gpu.first)
			break;
		kernel = take();
		pthread_mutex_unlock(&gpu.lock);
		run_kernel(&memory, kernel);
		pthread_mutex_lock(&gpu.lock);
		if (!--gpu.busy)
			pthread_cond_broadcast(&gpu.idle);
	}
	pthread_mutex_unlock(&gpu.lock);
	free(memory.work);
	free(memory.landing);
	return NULL;
}

void gpu_start(void)
{
	int error = pthread_create(&gpu.thread, NULL, run, NULL);

	if (error)
		die("no thread for the GPU: %s", strerror(error));
}

void gpu_launch(struct kernel *kernel)
{
	pthread_mutex_lock(&gpu.lock);
	kernel->next = NULL;
	*gpu.last = kernel;
	gpu.last = &kernel->next;
	gpu.busy++;
	pthread_cond_signal(&gpu.launched);
	pthread_mutex_unlock(&gpu.lock);
}

void gpu_compute(uint64_t ms)
{
	struct kernel *kernel = calloc(1, sizeof(*kernel));

	if (!kernel)
		die("no memory");
	kernel->compute_ms = ms;
	gpu_launch(kernel);
}

void gpu_sync(void)
{
	pthread_mutex_lock(&gpu.lock);
	while (gpu.busy)
		pthread_cond_wait(&gpu.idle, &gpu.lock);
	pthread_mutex_unlock(&gpu.lock);
}

void gpu_stop(void)
{
	pthread_mutex_lock(&gpu.lock);
	gpu.stopping = true;
	pthread_cond_signal(&gpu.launched);
	pthread_mutex_unlock(&gpu.lock);
	pthread_join(gpu.thread, NULL);
}
