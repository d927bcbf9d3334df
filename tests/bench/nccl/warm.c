/* SPDX-License-Identifier: Apache-2.0 */
/* warm.c - both halves of an operation in turns on one core, caches warm. */
#include <stdio.h>

#include "bench.h"

#define DEEP 1900u  /* operations in flight: an application that runs far ahead of its GPU */
#define WARM_UP 30u /* rounds */

static struct player_op ops[DEEP];
static unsigned depth = 16;  /* operations in flight: as many enqueued, then as many completed */
static unsigned repeat = 12; /* times `depth`: one round of one side */

/* Adds one round's time per operation; returns both halves in ns. */
static void play_round(struct side *side, unsigned channels, double *app_ns, double *kernel_ns)
{
	static unsigned number;
	uint64_t app = 0, kernel = 0, begin, middle;

	for (unsigned r = 0; r < repeat; r++) {
		unsigned first = number;

		for (unsigned i = 0; i < depth; i++)
			ops[i] = load_op(first + i, channels);
		begin = ticks();
		for (unsigned i = 0; i < depth; i++)
			player_enqueue(load_comm(side, first + i), &ops[i]);
		middle = ticks();
		for (unsigned i = 0; i < depth; i++)
			load_kernel(side, &ops[i], first + i);
		app += middle - begin;
		kernel += ticks() - middle;
		number += depth;
	}
	*app_ns = (double)app * ns_per_tick() / (depth * repeat);
	*kernel_ns = (double)kernel * ns_per_tick() / (depth * repeat);
}

static void measure(unsigned channels, unsigned rounds)
{
	char app_row[32], kernel_row[32];
	static const char *const kinds[] = { [LOAD_COLLS] = "",
	                                     [LOAD_MIXED] = "mixed_",
	                                     [LOAD_SENDS] = "sends_",
	                                     [LOAD_TAGGED] = "tagged_" };
	const char *kind = depth == DEEP ? "deep_" : kinds[load];

	snprintf(app_row, sizeof(app_row), "%sapp/%u", kind, channels);
	snprintf(kernel_row, sizeof(kernel_row), "%skernel/%u", kind, channels);
	for (unsigned r = 0; r < rounds + WARM_UP; r++) {
		unsigned first = coin();

		for (unsigned turn = 0; turn < SIDES; turn++) {
			struct side *side = &sides[first ^ turn];
			double app_ns, kernel_ns;

			play_round(side, channels, &app_ns, &kernel_ns);
			if (side == &sides[OURS])
				told_ours += depth * repeat;
			if (r < WARM_UP)
				continue;
			say(app_row, side->word, app_ns);
			say(kernel_row, side->word, kernel_ns);
		}
	}
}

void measure_warm(unsigned rounds)
{
	pin(0);
	measure(1, rounds);
	measure(8, rounds);
	measure(32, rounds);
	load = LOAD_MIXED;
	measure(8, rounds);
	load = LOAD_SENDS;
	measure(8, rounds);
	load = LOAD_TAGGED;
	measure(8, rounds);
	load = LOAD_COLLS;
	depth = DEEP;
	repeat = 1;
	measure(8, rounds / 4 + 1);
}
