/* SPDX-License-Identifier: Apache-2.0 */
/* warm.c - both halves of an operation in turns on one core, caches warm. */
#include <stdio.h>
#include <string.h>

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
	const char *kind = depth == DEEP ? "deep_" : load_names[load];

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

void measure_counted(unsigned rounds)
{
	pin(0);
	load = LOAD_COUNTED;
	load_begin();
	measure(8, rounds);
}

/* The plugin looks once a second how many of the proxy's operations there are, and follows so many
 * of them: what the first seconds cost is not what the rest does. */
#define NET_WARM_UP_NS 2500000000u

void measure_net(unsigned rounds)
{
	uint64_t begin_ns = now_ns();
	double app_ns, kernel_ns;

	pin(0);
	load = LOAD_NET;
	if (!(sides[OURS].player.mask & PROF_PROXY_OP))
		fail("the profiler does not ask for the proxy's events: is NCCL_INSPECTOR_NET on?");
	while (now_ns() - begin_ns < NET_WARM_UP_NS) {
		play_round(&sides[OURS], 8, &app_ns, &kernel_ns);
		told_ours += depth * repeat;
	}
	measure(8, rounds);
}

void play_only(const char *what, unsigned many)
{
	const char *word = strchr(what, '-') + 1, *name = strchr(word, '-') + 1;
	struct side *side = &sides[!strncmp(word, "ours", 4) ? OURS : NOTHING];

	for (load = LOADS - 1; load > LOAD_COLLS; load--)
		if (!strncmp(load_names[load], name, strlen(name)))
			break;
	load_begin();
	for (unsigned i = 0; i < many; i++) {
		struct player_op op = load_op(i, 8);

		player_enqueue(load_comm(side, i), &op);
		load_kernel(side, &op, i);
	}
	told_ours += side == &sides[OURS] ? many : 0;
}
