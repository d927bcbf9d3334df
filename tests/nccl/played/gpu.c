/* SPDX-License-Identifier: Apache-2.0 */
/* gpu.c - a queue, a thread that works it off, and what NCCL's kernels tell the profiler.
 *
 * NCCL's kernels count the works of each channel, whether they are profiled or not. */
#include "gpu.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "layout.h"
#include "net.h"

#define RINGS 128

struct item {
	struct item *next;
	void (*function)(void *);
	void *data;
	uint64_t args[];
};

static volatile unsigned batch_ns = 30000; /* how long one lasts */

/* What a kernel keeps in the memory of the device between launches. */
static struct {
	const struct ring *ring;
	uint64_t counter[CHANNELS];
} works[RINGS];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct item *first, **end = &first;
static uint64_t queued, done;
static bool running;

static uint64_t *counters_of(const struct ring *ring)
{
	for (unsigned i = 0; i < RINGS; i++)
		if (works[i].ring == ring)
			return works[i].counter;
	for (unsigned i = 0; i < RINGS; i++)
		if (!works[i].ring) {
			works[i].ring = ring;
			memset(works[i].counter, 0, sizeof(works[i].counter));
			return works[i].counter;
		}
	fprintf(stderr, "more than %d communicators\n", RINGS);
	_exit(3);
}

void gpu_forget(const void *memory)
{
	pthread_mutex_lock(&lock);
	for (unsigned i = 0; i < RINGS; i++)
		if (works[i].ring == memory)
			works[i].ring = NULL;
	pthread_mutex_unlock(&lock);
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Works from + 1 to from + n of a channel. NCCL reads a time when it has seen the counter. */
static void stamp(struct ring *ring, uint64_t from, unsigned n, uint64_t at_ns)
{
	for (uint64_t i = from + 1; i <= from + n; i++) {
		ring->data[i % RING].timestamp = at_ns;
		atomic_thread_fence(memory_order_seq_cst);
		ring->data[i % RING].counter = i;
	}
}

/* Works of the batch at *at and of those that extend it; *at goes on to the next, or to NULL. */
static unsigned take_batch(const struct batch **at)
{
	unsigned n = 0;
	bool extends = true;

	while (*at && extends) {
		uint32_t jump = (*at)->flags & 0x3fff;

		n += (unsigned)__builtin_popcountll((*at)->offset_bitset);
		extends = (*at)->flags >> 14 & 1;
		*at = jump ? *at + jump : NULL;
	}
	return n;
}

/* Each channel takes its batches one after the other; all channels work at the same time, and each
 * batch for batch_ns to the nanosecond, so that the time of an operation is a multiple of it. */
static void run_kernel(const struct kernel_args *args)
{
	const struct kernel_comm *comm = args->comm;
	uint64_t *counter = counters_of(comm->started);
	const struct batch *at[CHANNELS] = { 0 };
	const struct batch *batch = args->batches;
	uint64_t start_ns = now_ns();
	bool more = true;

	net_serve(comm);
	for (unsigned c = 0; c < CHANNELS; c++)
		if (args->channel_mask >> c & 1)
			at[c] = batch++;
	while (more) {
		unsigned n[CHANNELS] = { 0 };

		more = false;
		for (unsigned c = 0; c < CHANNELS; c++)
			if (at[c]) {
				n[c] = take_batch(&at[c]);
				stamp(&comm->started[c], counter[c], n[c], start_ns);
				more |= at[c] != NULL;
			}
		usleep(batch_ns / 1000);
		for (unsigned c = 0; c < CHANNELS; c++) {
			stamp(&comm->completed[c], counter[c], n[c], start_ns + batch_ns);
			counter[c] += n[c];
		}
		start_ns += batch_ns;
	}
}

static void *work_off(void *unused)
{
	(void)unused;
	for (;;) {
		struct item *item;

		pthread_mutex_lock(&lock);
		while (!first)
			pthread_cond_wait(&changed, &lock);
		item = first;
		pthread_mutex_unlock(&lock);
		if (item->function)
			item->function(item->data);
		else
			run_kernel((const struct kernel_args *)(const void *)item->args);
		pthread_mutex_lock(&lock);
		first = item->next;
		if (!first)
			end = &first;
		done++;
		pthread_cond_broadcast(&changed);
		pthread_mutex_unlock(&lock);
		free(item);
	}
	return NULL;
}

static void put(struct item *item)
{
	pthread_t thread;

	pthread_mutex_lock(&lock);
	if (!running)
		running = !pthread_create(&thread, NULL, work_off, NULL);
	*end = item;
	end = &item->next;
	queued++;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

void gpu_launch(const void *args, size_t bytes)
{
	struct item *item = calloc(1, sizeof(*item) + bytes);

	memcpy(item->args, args, bytes);
	put(item);
}

void gpu_call(void (*function)(void *), void *data)
{
	struct item *item = calloc(1, sizeof(*item));

	item->function = function;
	item->data = data;
	put(item);
}

void played_batch_ns(unsigned ns)
{
	gpu_wait(gpu_last());
	batch_ns = ns;
}

uint64_t gpu_last(void)
{
	uint64_t number;

	pthread_mutex_lock(&lock);
	number = queued;
	pthread_mutex_unlock(&lock);
	return number;
}

bool gpu_is_done(uint64_t number)
{
	bool is;

	pthread_mutex_lock(&lock);
	is = done >= number;
	pthread_mutex_unlock(&lock);
	return is;
}

void gpu_wait(uint64_t number)
{
	pthread_mutex_lock(&lock);
	while (done < number)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
}
