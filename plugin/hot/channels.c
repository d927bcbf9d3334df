/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/channels.h"

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

/* What was learned of that kind and size; 0: nothing. */
static uint64_t learned(const struct channels *channels, uint64_t hash)
{
	uint64_t lesson = atomic_load_explicit(&channels->learned[hash >> 56], relaxed);

	return (lesson ^ hash) & HASH_MASK ? 0 : lesson;
}

uint8_t channels_expected(const struct channels *channels, uint32_t key, uint64_t bytes)
{
	uint64_t lesson = learned(channels, hash_of(key, bytes));

	return lesson ? (uint8_t)lesson : EVENT_CHANNELS_UNKNOWN;
}

void channels_learn(struct channels *channels, uint32_t key, uint64_t bytes, uint8_t count)
{
	uint64_t hash = hash_of(key, bytes), lesson = learned(channels, hash);

	/* Too few would end operations early, so it takes many to go down. */
	if (count < (lesson & COUNT_MASK) && (lesson & FEWER_MASK) < FEWER_MOST * ONE_FEWER)
		lesson += ONE_FEWER;
	else
		lesson = (hash & HASH_MASK) | count;
	atomic_store_explicit(&channels->learned[hash >> 56], lesson, relaxed);
}

_Static_assert(CHANNELS_LEARNED == 256, "eight bits of the hash say where");
