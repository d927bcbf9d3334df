/* SPDX-License-Identifier: Apache-2.0 */
/* figures.c - time, rates, and the ring of what has finished. */
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#include "inspector.h"

uint64_t nvidia_now_us(void)
{
	struct timeval now;

	gettimeofday(&now, NULL);
	return (uint64_t)now.tv_sec * 1000000u + (uint64_t)now.tv_usec;
}

void *nvidia_memory(void *old, size_t bytes)
{
	void *memory = realloc(old, bytes);

	if (!memory)
		abort();
	return memory;
}

/* Channels are looked for at 0 to n - 1, wherever they are (D1); the longest channel is the time
 * (D13), in whole microseconds, and none of these is no time (D7). */
bool nvidia_time(const struct nvidia_op *op, uint64_t *time_us, enum nvidia_source *source)
{
	uint64_t gpu_us = 0, cpu_us = 0;

	for (unsigned i = 0; i < op->channels; i++) {
		const struct nvidia_channel *channel = &op->channel[i];
		uint64_t us = 0;

		if (channel->gpu_stop_ns > channel->gpu_start_ns && channel->gpu_start_ns)
			us = (channel->gpu_stop_ns - channel->gpu_start_ns) / 1000;
		if (us > gpu_us)
			gpu_us = us;
		else if (!us && channel->last_us - channel->first_us > cpu_us)
			cpu_us = channel->last_us - channel->first_us;
	}
	*source = gpu_us ? NVIDIA_KERNEL_GPU : cpu_us ? NVIDIA_KERNEL_CPU : NVIDIA_COLLECTIVE_CPU;
	*time_us = gpu_us ? gpu_us : cpu_us;
	if (*source == NVIDIA_COLLECTIVE_CPU)
		*time_us = op->last_kernel_us - op->first_kernel_us;
	return *source == NVIDIA_KERNEL_GPU || !nvidia_settings.kernel_timing;
}

void nvidia_rate(struct nvidia_record *record, int nranks)
{
	double n = nranks, moved = (double)record->bytes, factor = 0;
	const char *func = record->func;

	if (!strcmp(func, "AllReduce")) {
		factor = 2 * (n - 1) / n;
	} else if (!strcmp(func, "ReduceScatter") || !strcmp(func, "AllGather") ||
	           !strcmp(func, "AllGatherV")) {
		moved *= n;
		factor = (n - 1) / n;
	} else if (!strcmp(func, "Broadcast") || !strcmp(func, "Reduce") || record->p2p) {
		factor = 1;
	} else {
		moved = 0;
	}
	record->algbw = record->time_us ? moved / ((double)record->time_us * 1e-6) / 1e9 : 0;
	record->busbw = record->algbw * factor;
}

void nvidia_ring_push(struct nvidia_comm *comm, const struct nvidia_record *record)
{
	struct nvidia_ring *ring = record->p2p ? &comm->p2p : &comm->coll;

	pthread_rwlock_wrlock(&comm->lock);
	if (!ring->records)
		ring->records = nvidia_memory(NULL, ring->size * sizeof(*ring->records));
	ring->records[(ring->begin + ring->count) % ring->size] = *record;
	if (ring->count < ring->size)
		ring->count++;
	else
		ring->begin = (ring->begin + 1) % ring->size; /* the oldest is gone, silently: D3 */
	pthread_rwlock_unlock(&comm->lock);
}

struct nvidia_record *nvidia_ring_room(void)
{
	size_t coll = nvidia_settings.coll_ring, p2p = nvidia_settings.p2p_ring;

	return nvidia_memory(NULL, (coll > p2p ? coll : p2p) * sizeof(struct nvidia_record));
}

size_t nvidia_ring_take(struct nvidia_comm *comm, struct nvidia_ring *ring,
                        struct nvidia_record *room)
{
	pthread_rwlock_wrlock(&comm->lock);
	size_t count = ring->count;

	for (size_t i = 0; i < count; i++)
		room[i] = ring->records[(ring->begin + i) % ring->size];
	ring->begin = ring->count = 0;
	pthread_rwlock_unlock(&comm->lock);
	return count;
}
