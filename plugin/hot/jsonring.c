/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/jsonring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define relaxed memory_order_relaxed
#define TRIES 64 /* each failure means that another thread went through */
#define TURN_SHIFT 24u
#define TURN_MASK (0xffull << TURN_SHIFT)

/* A cell's turn in lap n: 2n free for a producer, 2n + 1 full. A cell is never more than a lap
 * behind the head, so eight bits tell the laps apart. */
static uint8_t turn_of(uint64_t last)
{
	return (uint8_t)(last >> TURN_SHIFT);
}

static void *allocate(size_t bytes)
{
	void *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
	                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	return map == MAP_FAILED ? NULL : map;
}

int jsonring_open(struct jsonring *ring, unsigned log2_count, uint64_t min_bytes, bool traced,
                  _Atomic uint64_t *dropped)
{
	size_t count = (size_t)1 << log2_count;

	memset(ring, 0, sizeof(*ring));
	ring->mask = (uint32_t)count - 1;
	ring->lap_shift = log2_count;
	ring->min_bytes = min_bytes;
	ring->dropped = dropped;
	ring->cells = allocate(count * sizeof(*ring->cells));
	ring->traces = traced ? allocate(count * sizeof(*ring->traces)) : NULL;
	if (ring->cells && (ring->traces || !traced))
		return 0;
	jsonring_free(ring);
	return -ENOMEM;
}

void jsonring_free(struct jsonring *ring)
{
	size_t count = (size_t)ring->mask + 1;

	if (ring->cells)
		munmap(ring->cells, count * sizeof(*ring->cells));
	if (ring->traces)
		munmap(ring->traces, count * sizeof(*ring->traces));
	ring->cells = NULL;
	ring->traces = NULL;
}

/* The cell that is now the caller's to fill, and its lap; NULL when the ring is full. */
static struct jsonring_cell *take(struct jsonring *ring, uint64_t *position)
{
	uint64_t head = atomic_load_explicit(&ring->head, relaxed);

	for (int tries = 0; tries < TRIES; tries++) {
		struct jsonring_cell *cell = &ring->cells[head & ring->mask];
		uint8_t free = (uint8_t)(head >> ring->lap_shift << 1);
		int8_t ahead =
		    (int8_t)(turn_of(atomic_load_explicit(&cell->last, memory_order_acquire)) -
		             free);

		if (ahead < 0)
			return NULL;
		if (ahead > 0) {
			head = atomic_load_explicit(&ring->head, relaxed);
		} else if (atomic_compare_exchange_weak_explicit(&ring->head, &head, head + 1,
		                                                 relaxed, relaxed)) {
			*position = head;
			return cell;
		}
	}
	return NULL;
}

bool jsonring_push(struct jsonring *ring, const struct json_record *record,
                   const struct trace_op *trace)
{
	struct jsonring_cell *cell;
	uint64_t position, last;

	if (record->bytes < ring->min_bytes)
		return false;
	cell = take(ring, &position);
	if (!cell) {
		atomic_fetch_add_explicit(ring->dropped, 1, relaxed);
		return false;
	}
	memcpy(cell->words, record, sizeof(cell->words));
	if (ring->traces)
		trace_copy(&ring->traces[position & ring->mask], trace);
	last = record->comm | (record->flags & 0xffull) << 16 |
	       (uint64_t)record->comm_generation << 32;
	last |= (uint64_t)(uint8_t)((position >> ring->lap_shift << 1) + 1) << TURN_SHIFT;
	atomic_store_explicit(&cell->last, last, memory_order_release);
	return true;
}

static struct jsonring_cell *oldest(const struct jsonring *ring, uint8_t *free)
{
	*free = (uint8_t)(ring->tail >> ring->lap_shift << 1);
	return &ring->cells[ring->tail & ring->mask];
}

bool jsonring_peek(struct jsonring *ring, struct json_record *record)
{
	uint8_t free;
	struct jsonring_cell *cell = oldest(ring, &free);
	uint64_t last = atomic_load_explicit(&cell->last, memory_order_acquire);

	if (turn_of(last) != (uint8_t)(free + 1))
		return false;
	memcpy(record, cell->words, sizeof(cell->words));
	record->comm = (uint16_t)last;
	record->flags = (uint16_t)(last >> 16 & 0xff);
	record->comm_generation = (uint32_t)(last >> 32);
	return true;
}

const struct trace_op *jsonring_trace(const struct jsonring *ring)
{
	return ring->traces ? &ring->traces[ring->tail & ring->mask] : NULL;
}

void jsonring_release(struct jsonring *ring)
{
	uint8_t free;
	struct jsonring_cell *cell = oldest(ring, &free);

	atomic_store_explicit(&cell->last, (uint64_t)(uint8_t)(free + 2) << TURN_SHIFT,
	                      memory_order_release);
	ring->tail++;
}
