/* SPDX-License-Identifier: Apache-2.0 */
#include "channels.h"

#define relaxed memory_order_relaxed
#define COUNT_MASK 0xffull
#define ONE_FEWER 0x100ull
#define FEWER_MASK 0xff00ull
#define HASH_MASK (~(FEWER_MASK | COUNT_MASK))
/* After so many operations with fewer channels, one after the other, their number is believed. */
#define FEWER_MOST 16u

static uint64_t hash_of(uint32_t key, uint64_t bytes)
{
	uint64_t hash = (bytes ^ (uint64_t)(key + 1) << 48) * 0x9e3779b97f4a7c15ull;

	return (hash ^ hash >> 29) * 0xbf58476d1ce4e5b9ull;
}

uint8_t channels_expected(const struct channels *channels, uint32_t key, uint64_t bytes)
{
	uint64_t hash = hash_of(key, bytes);
	uint64_t word = atomic_load_explicit(&channels->learned[hash >> 56], relaxed);

	return word && !((word ^ hash) & HASH_MASK) ? (uint8_t)word : EVENT_CHANNELS_UNKNOWN;
}

void channels_learn(struct channels *channels, uint32_t key, uint64_t bytes, uint8_t count)
{
	uint64_t hash = hash_of(key, bytes);
	_Atomic uint64_t *place = &channels->learned[hash >> 56];
	uint64_t word = atomic_load_explicit(place, relaxed);
	bool is_known = word && !((word ^ hash) & HASH_MASK);

	/* Too few would end operations early, so it takes many to go down. */
	if (is_known && count < (word & COUNT_MASK) && (word & FEWER_MASK) < FEWER_MOST * ONE_FEWER)
		word += ONE_FEWER;
	else
		word = (hash & HASH_MASK) | count;
	atomic_store_explicit(place, word, relaxed);
}

_Static_assert(CHANNELS_LEARNED == 256, "eight bits of the hash say where");
