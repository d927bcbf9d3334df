/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/ends.h"

#include <string.h>

#define relaxed memory_order_relaxed
#define AHEAD 8u /* records that are asked for before they are wanted */
#define TRIES 8  /* for each 64 chunks; each failure means that another thread got one */

_Static_assert(ENDS_CHUNKS % 64 == 0, "a bit for each chunk");
_Static_assert((ENDS_CHUNK & (ENDS_CHUNK - 1)) == 0, "a chunk begins at a multiple of its size");

void ends_init(struct ends *ends)
{
	memset(ends, 0, sizeof(*ends));
	for (unsigned i = 0; i < ENDS_CHUNKS / 64; i++)
		atomic_store_explicit(&ends->free[i], UINT64_MAX, memory_order_release);
}

/* The lowest free chunk, because the processor is likelier to have it in its cache. */
static uint32_t take(struct ends *ends)
{
	for (unsigned i = 0; i < ENDS_CHUNKS / 64; i++) {
		uint64_t free = atomic_load_explicit(&ends->free[i], relaxed);

		for (unsigned tries = 0; free && tries < TRIES; tries++) {
			uint64_t lowest = free & -free;

			free = atomic_fetch_and_explicit(&ends->free[i], ~lowest,
			                                 memory_order_acquire);
			if (free & lowest)
				return i * 64 + (uint32_t)__builtin_ctzll(lowest);
		}
	}
	return ENDS_FULL;
}

uint32_t ends_take_chunk(struct ends *ends, struct box *box, unsigned comm)
{
	uint32_t place = atomic_load_explicit(&box->comms[comm].end_place, relaxed);
	uint32_t chunk = take(ends);

	if (chunk == ENDS_FULL) {
		/* Its caller has the communicator to itself. */
		atomic_store_explicit(&ends->lost[comm],
		                      atomic_load_explicit(&ends->lost[comm], relaxed) + 1,
		                      relaxed);
		return ENDS_FULL;
	}
	/* Read by the consumer behind the next value of end_place. */
	atomic_store_explicit(place ? &ends->next[place / ENDS_CHUNK - 1] : &ends->first[comm],
	                      (uint16_t)(chunk + 1), relaxed);
	return chunk * ENDS_CHUNK;
}

/* Moves the reader to the next chunk and gives back the one before. */
static void turn_page(struct ends *ends, unsigned comm)
{
	struct ends_reader *reader = &ends->readers[comm];
	unsigned before = reader->chunk - 1u;

	if (!reader->chunk) {
		reader->chunk = atomic_load_explicit(&ends->first[comm], relaxed);
	} else {
		reader->chunk = atomic_load_explicit(&ends->next[before], relaxed);
		atomic_fetch_or_explicit(&ends->free[before / 64], 1ull << before % 64,
		                         memory_order_release);
	}
	reader->read = 0;
}

const struct box_sample *ends_peek(struct ends *ends, unsigned comm, uint32_t until)
{
	struct ends_reader *reader = &ends->readers[comm];
	uint32_t last = (until - 1) / ENDS_CHUNK; /* the chunk in which it is */

	if (!until)
		return NULL;
	if (!reader->chunk || (reader->read == ENDS_CHUNK && reader->chunk - 1u != last))
		turn_page(ends, comm);
	if (reader->chunk - 1u == last && reader->read == until - last * ENDS_CHUNK)
		return NULL;
	const struct box_sample *end =
	    &ends->ends[(reader->chunk - 1u) * ENDS_CHUNK + reader->read];

	/* Two to a line of the cache, which NCCL's thread has written: so it is here when it is
	 * wanted. */
	if (reader->read + AHEAD < ENDS_CHUNK)
		__builtin_prefetch(end + AHEAD);
	return end;
}

void ends_release(struct ends *ends, unsigned comm)
{
	ends->readers[comm].read++;
}
