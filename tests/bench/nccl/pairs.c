/* SPDX-License-Identifier: Apache-2.0 */
/* pairs.c - the application's thread and NCCL's other thread at full speed, one or more pairs.
 *
 * An operation is handed over where NCCL does it: after the start of its task and before its stop,
 * so that kernel events come before, between and after the calls of the other thread. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"

#define RING 64u /* operations in flight of a pair; a power of two */
#define CHANNELS 8u
#define PAIRS_MAX 4u
#define SPINS 200
#define PINNED_OPS 4000u /* of a round */
#define FREE_OPS 16000u

struct pair {
	_Alignas(128) _Atomic unsigned head; /* handed over */
	_Alignas(128) _Atomic unsigned tail; /* completed */
	_Alignas(128) struct player_op ops[RING];
	struct side *side;
	unsigned index, pairs, n_ops;
	bool pinned;
	uint64_t app_ticks; /* in the calls, without waiting */
	pthread_barrier_t *gate;
};

static struct pair all[PAIRS_MAX];

/* A thread per pair and half: with more threads than cores the other half must get its turn. */
static void wait_a_little(int *spins)
{
	if (++*spins % SPINS == 0)
		sched_yield();
}

/* Each pair has communicators of its own, as each has a thread of its own in NCCL. */
static unsigned number_of(const struct pair *pair, unsigned i)
{
	return pair->index + pair->pairs * (i % (COMMS / pair->pairs)) + COMMS * (i / 64 % 2);
}

static void *app_main(void *argument)
{
	struct pair *pair = argument;
	uint64_t spent = 0;

	if (pair->pinned)
		pin(0);
	pthread_barrier_wait(pair->gate);
	for (unsigned i = 0; i < pair->n_ops; i++) {
		unsigned number = number_of(pair, i);
		struct player_op *op = &pair->ops[i % RING];
		struct player_group group;
		int spins = 0;

		while (i - atomic_load_explicit(&pair->tail, memory_order_acquire) >= RING)
			wait_a_little(&spins);
		*op = load_op(number, CHANNELS);
		uint64_t begin = ticks();

		player_group_begin(&group, load_comm(pair->side, number), 1, false);
		player_group_call(&group, op);
		player_group_launch(&group);
		player_group_tasks(&group);
		struct player_op *handed = group.first;
		void *handle = handed->handle;

		group.first = NULL; /* from here on it is the other thread's */
		atomic_store_explicit(&pair->head, i + 1, memory_order_release);
		play_stop(group.comm, handle);
		player_group_end(&group);
		spent += ticks() - begin;
	}
	pair->app_ticks = spent;
	return NULL;
}

static void *kernel_main(void *argument)
{
	struct pair *pair = argument;

	if (pair->pinned)
		pin(1);
	pthread_barrier_wait(pair->gate);
	for (unsigned i = 0; i < pair->n_ops; i++) {
		int spins = 0;

		while (atomic_load_explicit(&pair->head, memory_order_acquire) == i)
			wait_a_little(&spins);
		load_kernel(pair->side, &pair->ops[i % RING], number_of(pair, i));
		atomic_store_explicit(&pair->tail, i + 1, memory_order_release);
	}
	return NULL;
}

/* Plays n_ops in each pair. Returns the wall time in ns, from the last start to the last end. */
static uint64_t play(struct side *side, unsigned pairs, unsigned n_ops, bool pinned)
{
	pthread_t threads[2 * PAIRS_MAX];
	pthread_barrier_t gate;
	uint64_t begin;

	pthread_barrier_init(&gate, NULL, 2 * pairs + 1);
	for (unsigned p = 0; p < pairs; p++) {
		struct pair *pair = &all[p];

		atomic_store(&pair->head, 0);
		atomic_store(&pair->tail, 0);
		pair->side = side;
		pair->index = p;
		pair->pairs = pairs;
		pair->n_ops = n_ops;
		pair->pinned = pinned;
		pair->gate = &gate;
		if (pthread_create(&threads[2 * p], NULL, app_main, pair) ||
		    pthread_create(&threads[2 * p + 1], NULL, kernel_main, pair))
			fail("no thread");
	}
	pthread_barrier_wait(&gate);
	begin = now_ns();
	for (unsigned t = 0; t < 2 * pairs; t++)
		pthread_join(threads[t], NULL);
	pthread_barrier_destroy(&gate);
	if (side == &sides[OURS])
		told_ours += (uint64_t)pairs * n_ops;
	return now_ns() - begin;
}

static void measure_pinned(unsigned rounds, const char *row)
{
	for (unsigned r = 0; r < rounds + 2; r++) {
		unsigned first = coin();

		for (unsigned turn = 0; turn < SIDES; turn++) {
			struct side *side = &sides[first ^ turn];

			play(side, 1, PINNED_OPS, true);
			if (r >= 2)
				say(row, side->word,
				    (double)all[0].app_ticks * ns_per_tick() / PINNED_OPS);
		}
	}
}

void measure_pairs(unsigned rounds)
{
	char row[32];

	measure_pinned(rounds, "app_two_cores");
	load = LOAD_SENDS;
	measure_pinned(rounds, "sends_two_cores");
	load = LOAD_COLLS;
	for (unsigned pairs = 1; pairs <= PAIRS_MAX; pairs *= 2) {
		snprintf(row, sizeof(row), "throughput/%u", pairs);
		for (unsigned r = 0; r < rounds; r++) {
			unsigned first = coin();

			for (unsigned turn = 0; turn < SIDES; turn++) {
				struct side *side = &sides[first ^ turn];
				unsigned n_ops = FREE_OPS / pairs;

				say(row, side->word,
				    1e9 * n_ops * pairs / (double)play(side, pairs, n_ops, false));
			}
		}
	}
}
