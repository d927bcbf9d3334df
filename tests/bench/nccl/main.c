/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - `bench WHAT NOTHING.so OURS.so ROUNDS [API]`: one part, its figures on stdout. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"

static const struct {
	const char *what;
	void (*measure)(unsigned rounds);
} with_both[] = {
	{ "warm", measure_warm },     { "pairs", measure_pairs },
	{ "paced", measure_paced },   { "sustained", measure_sustained },
	{ "gentle", measure_gentle }, { "counted", measure_counted },
	{ "net", measure_net },
};

static int measure_ours(const char *what, const char *ours, unsigned rounds)
{
	if (!strcmp(what, "finalize"))
		measure_finalize(ours);
	else if (!strcmp(what, "memory"))
		measure_memory(ours);
	else if (!strcmp(what, "dump"))
		measure_dump(ours, rounds);
	else
		return 1;
	return 0;
}

int main(int argc, char **argv)
{
	unsigned rounds;

	if (argc != 5 && argc != 6)
		fail("usage: bench WHAT NOTHING.so OURS.so ROUNDS [API]");
	if (argc == 6)
		api = (unsigned)strtoul(argv[5], NULL, 10);
	rounds = (unsigned)strtoul(argv[4], NULL, 10);
	if (!measure_ours(argv[1], argv[3], rounds))
		return 0;
	sides_open(argv[2], argv[3]);
	if (!strcmp(argv[1], "counts"))
		measure_counts();
	if (!strncmp(argv[1], "only-", 5))
		play_only(argv[1], rounds);
	for (size_t i = 0; i < sizeof(with_both) / sizeof(with_both[0]); i++)
		if (!strcmp(argv[1], with_both[i].what))
			with_both[i].measure(rounds);
	sides_close();
	return 0;
}
