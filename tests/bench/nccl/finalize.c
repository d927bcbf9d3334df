/* SPDX-License-Identifier: Apache-2.0 */
/* finalize.c - how long the last ncclCommDestroy() takes, when the output can be written and, with
 * block.so preloaded, when it hangs. */
#include <dlfcn.h>
#include <time.h>

#include "bench.h"
#include "block.h"

#define CHANNELS 8u
#define HELD_LIMIT_NS 10000000000u

/* Until the plugin's thread is stuck; ends the program if it never is. */
static void block_output(void)
{
	void (*from_now)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "block_from_now");
	int (*held)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, "block_held");
	const struct timespec a_moment = { 0, 5000000 };
	uint64_t begin = now_ns();

	if (!from_now || !held)
		return;
	from_now();
	while (!held()) {
		if (now_ns() - begin > HELD_LIMIT_NS)
			fail("nothing is written, so nothing hangs");
		nanosleep(&a_moment, NULL);
	}
}

void measure_finalize(const char *ours)
{
	struct side *side = &sides[OURS];
	struct player_op op;
	uint64_t begin;

	ours_open(ours);
	for (unsigned i = 0; i < COMMS; i++) {
		comm_name(&side->comms[i], i);
		player_init(&side->player, &side->comms[i]);
	}
	for (unsigned i = 0; i < 10 * COMMS; i++) {
		op = load_op(i, CHANNELS);
		player_enqueue(load_comm(side, i), &op);
		load_kernel(side, &op, i);
	}
	told_ours += 10 * COMMS;
	block_output();
	for (unsigned i = 0; i + 1 < COMMS; i++)
		player_finalize(&side->comms[i]);
	begin = now_ns();
	player_finalize(&side->comms[COMMS - 1]);
	say("finalize", "ours", (double)(now_ns() - begin) / 1e6);
	say("told", "ours", (double)told_ours);
}
