/* SPDX-License-Identifier: Apache-2.0 */
/* dump.c - CPU time of the plugin's own threads while it writes, of several GPUs, many series. */
#include <dlfcn.h>
#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"

#define GPUS 6u
#define CHANNELS 4u
#define KINDS 7u
#define INTERVAL_NS 100000000u /* of the files */
#define BURST_NS 20000000u     /* so that every kind comes again in each interval */

/* Makes the i-th GPU that of this thread, as cudaSetDevice() does. */
static void use_gpu(void *driver, int i)
{
	int (*retain)(int **, int) =
	    (int (*)(int **, int))dlsym(driver, "cuDevicePrimaryCtxRetain");
	int (*make_current)(int *) = (int (*)(int *))dlsym(driver, "cuCtxSetCurrent");
	int *context = NULL;

	if (!retain || !make_current || retain(&context, i) || make_current(context))
		fail("no fake GPU");
}

/* As many kinds of operation as there is room for in the box: 7 of each communicator. */
static struct player_op kind_of_op(unsigned kind)
{
	static const enum player_func colls[] = { PLAYER_ALLREDUCE, PLAYER_ALLGATHER,
	                                          PLAYER_REDUCESCATTER };

	if (kind < 2)
		return player_p2p(kind ? PLAYER_RECV : PLAYER_SEND, 5, 1u << 20);
	return player_coll(colls[kind % 3], (size_t)16384 << (kind / 3 * 6));
}

static void one_of_each_kind(struct side *side)
{
	for (unsigned i = 0; i < KINDS * COMMS; i++) {
		struct player_op op = kind_of_op(i / COMMS), born = load_op(i, CHANNELS);

		op.channels = CHANNELS;
		op.born_ns = born.born_ns;
		player_enqueue(load_comm(side, i), &op);
		load_kernel(side, &op, i);
	}
	told_ours += KINDS * COMMS;
}

static void one_burst(struct side *side)
{
	const struct timespec pause = { 0, BURST_NS };

	one_of_each_kind(side);
	nanosleep(&pause, NULL);
}

void measure_dump(const char *ours, unsigned rounds)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	struct side *side = &sides[OURS];
	struct pollfd ask = { .fd = STDIN_FILENO, .events = POLLIN };
	uint64_t cpu_before, begin;

	if (!driver)
		fail("no libcuda.so.1 in LD_LIBRARY_PATH");
	ours_open(ours);
	for (unsigned i = 0; i < COMMS; i++) {
		use_gpu(driver, (int)(i % GPUS));
		comm_name(&side->comms[i], i);
		player_init(&side->player, &side->comms[i]);
	}
	one_of_each_kind(side);
	cpu_before = other_threads_ns();
	begin = now_ns();
	while (now_ns() - begin < (uint64_t)rounds * INTERVAL_NS)
		one_burst(side);
	say("dump/cpu_ms", "ours", (double)(other_threads_ns() - cpu_before) / 1e6);
	say("dump/seconds", "ours", (double)(now_ns() - begin) / 1e9);
	fflush(stdout);
	while (poll(&ask, 1, 0) == 0) /* until the reader has counted the series of the files */
		one_burst(side);
	say("told", "ours", (double)told_ours);
}
