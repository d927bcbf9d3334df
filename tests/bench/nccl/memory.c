/* SPDX-License-Identifier: Apache-2.0 */
/* memory.c - what the plugin takes of the process's memory (PSS), in KiB. */
#include <stdio.h>
#include <string.h>

#include "bench.h"

#define LIVE 64u
#define CHURN 10000u
#define OPS_EACH 6u
#define CHANNELS 8u

static double pss_kib(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "re");
	char line[256];
	long kib = -1;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "Pss: %ld kB", &kib) == 1)
			break;
	if (file)
		fclose(file);
	if (kib < 0)
		fail("no smaps_rollup");
	return (double)kib;
}

static void use(struct player_comm *comm)
{
	for (unsigned i = 0; i < OPS_EACH; i++) {
		struct player_op op = load_op(i * COMMS, CHANNELS);

		player_enqueue(comm, &op);
		player_kernel(comm, &op, op.born_ns, op.born_ns + 100);
	}
	told_ours += OPS_EACH;
}

void measure_memory(const char *ours)
{
	static struct player_comm comms[LIVE], one;
	struct side *side = &sides[OURS];
	double empty, first = 0, all, churned;

	pss_kib(); /* the reading's own buffers are there from now on */
	empty = pss_kib();
	ours_open(ours);
	for (unsigned i = 0; i < LIVE; i++) {
		comm_name(&comms[i], i);
		player_init(&side->player, &comms[i]);
		use(&comms[i]);
		if (i == 0)
			first = pss_kib();
	}
	all = pss_kib();
	for (unsigned i = 1; i < LIVE; i++)
		player_finalize(&comms[i]);
	for (unsigned i = 0; i < CHURN; i++) {
		comm_name(&one, i);
		one.id += LIVE;
		player_init(&side->player, &one);
		use(&one);
		player_finalize(&one);
	}
	churned = pss_kib();
	player_finalize(&comms[0]);
	say("memory/process", "ours", first - empty);
	say("memory/comm", "ours", (all - first) / (LIVE - 1));
	say("memory/churn", "ours", churned - all);
	say("told", "ours", (double)told_ours);
}
