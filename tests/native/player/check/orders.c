/* SPDX-License-Identifier: Apache-2.0 */
/* orders.c LIBRARY VERSION ORDER - plays what NCCL's scheduler does seldom, for the tests of the
 * plugin.
 *
 * From NCCL's source: src/enqueue.cc (ncclLaunchPrepare, scheduleCollTasksToPlan),
 * src/plugin/profiler.cc. The clock of the GPU is the machine's, so that times are plausible.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "player.h"

#define NS_PER_S 1000000000ull
#define RANKS 8
#define PARTS_MAX 3000u
#define MANY_RANKS 1500 /* whose parts are more than a communicator has slots */

static struct player player;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* A kernel that has taken 5 us by now. */
static void run_kernel(struct player_comm *comm, struct player_op *op)
{
	uint64_t end_ns = now_ns();

	player_kernel(comm, op, end_ns - 5000, end_ns);
}

static struct player_comm make_comm(uint64_t id, const char *name, int n_nodes, int n_ranks)
{
	struct player_comm comm = {
		.name = name, .id = id, .n_nodes = n_nodes, .n_ranks = n_ranks, .rank = 3
	};

	player_init(&player, &comm);
	return comm;
}

/* Rounds of the plugin's writer thread. */
static void pause_s(unsigned seconds)
{
	nanosleep(&(struct timespec){ .tv_sec = seconds }, NULL);
}

/* NCCL 2.27 to 2.30 announces no channels of what CollNet runs, and they come. */
static void play_untold(struct player_comm *comm)
{
	struct player_op op = player_coll(PLAYER_ALLREDUCE, 1 << 20);

	op.algo = "COLLNET_DIRECT";
	op.channels = 0;
	player_enqueue(comm, &op);
	op.channels = 4;
	run_kernel(comm, &op);
}

static void order_collnet(void)
{
	struct player_comm comm = make_comm(1, "sharp", 4, 32);

	play_untold(&comm);
	pause_s(5);
	for (unsigned i = 0; i < 60; i++)
		play_untold(&comm);
	player_finalize(&comm);
}

/* Two channels of eight have to share a slow adapter: they end 4 of 10 us after the others. */
static void order_slow_rail(void)
{
	struct player_comm comm = make_comm(1, "dp", 4, 32);
	struct player_op op = player_coll(PLAYER_ALLREDUCE, 1 << 20);

	op.channels = 8;
	for (unsigned i = 0; i < 1280; i++) {
		uint64_t end_ns = now_ns();

		player_enqueue(&comm, &op);
		for (unsigned channel = 0; channel < op.channels; channel++)
			player_kernel_start(&comm, &op, channel, end_ns - 10000);
		for (unsigned channel = 0; channel < op.channels; channel++)
			player_kernel_stop(&comm, &op, channel,
			                   channel % 4 == 2 ? end_ns : end_ns - 4000);
	}
	player_finalize(&comm);
}

/* Two of four announced channels begin, and end; the others wait for a rank that does not come. */
static void order_half(void)
{
	struct player_comm comm = make_comm(1, "stuck", 1, RANKS);
	struct player_op op = player_coll(PLAYER_ALLREDUCE, 1 << 20);

	op.channels = 4;
	player_enqueue(&comm, &op);
	op.channels = 2;
	run_kernel(&comm, &op);
	pause_s(6);
	_Exit(0);
}

/* Each replay tells the tasks of the capture; kernels for symmetric memory tell nothing (2.31). */
static void order_symmetric_graph(void)
{
	struct player_comm comm = make_comm(1, "graph", 1, RANKS),
			   other = make_comm(2, "eager", 1, RANKS);
	struct player_op op = player_coll(PLAYER_ALLREDUCE, 4096), eager = op;
	struct player_group group;

	op.symmetric = true;
	player_group_begin(&group, &comm, 1, true);
	player_group_call(&group, &op);
	player_group_captured(&group);
	for (unsigned i = 0; i < 5000; i++) {
		player_group_tasks(&group);
		player_group_end(&group);
	}
	for (unsigned i = 0; i < 100; i++) {
		player_enqueue(&other, &eager);
		run_kernel(&other, &eager);
	}
	player_finalize(&other);
	player_finalize(&comm);
}

/* Three symmetric collectives of one call are one kernel, which tells of the first only; then each
 * has its own. */
static void order_symmetric_plan(void)
{
	struct player_comm comm = make_comm(1, "symmetric", 1, RANKS);
	struct player_op ops[3] = { player_coll(PLAYER_ALLREDUCE, 4096),
	                            player_coll(PLAYER_ALLREDUCE, 8192),
	                            player_coll(PLAYER_ALLREDUCE, 65536) };

	for (unsigned i = 0; i < 3; i++)
		ops[i].symmetric = true;
	for (unsigned i = 0; i < 200; i++) {
		player_enqueue_group(&comm, ops, i < 100 ? 3 : 1);
		run_kernel(&comm, &ops[0]);
	}
	player_finalize(&comm);
}

/* A program that names its phases (NCCL 2.32's userProfilerTag), some symmetric kernels, and three
 * roots. */
static void order_labels(void)
{
	struct player_comm comm = make_comm(1, "dp", 2, RANKS);
	struct player_op gradients = player_coll(PLAYER_ALLREDUCE, 4096),
			 activations = player_p2p(PLAYER_SEND, 4, 4096);
	struct player_op copied = player_coll(PLAYER_ALLGATHER, 4096),
			 reduce = player_coll(PLAYER_REDUCE, 4096);
	struct player_op plain = player_coll(PLAYER_ALLREDUCE, 4096);

	gradients.user_tag = 1;
	activations.user_tag = copied.user_tag = 2;
	plain.user_tag = 1ull << 63; /* NCCL's own */
	for (unsigned i = 0; i < 120; i++) {
		gradients.symmetric = i % 2;
		gradients.kernel_variant = i % 2 ? "LDMC" : "Generic";
		player_enqueue(&comm, &gradients);
		run_kernel(&comm, &gradients);
		player_enqueue(&comm, &activations);
		run_kernel(&comm, &activations);
		player_enqueue(&comm, &plain);
		run_kernel(&comm, &plain);
		reduce.root = (int)(i % 3);
		player_enqueue(&comm, &reduce);
		run_kernel(&comm, &reduce);
		if (player.version >= 6)
			player_enqueue_ce(&comm, &copied);
	}
	player_finalize(&comm);
}

/* NCCL 2.29 and later tells no more of a Broadcast than its call. */
static void order_broadcast_calls(void)
{
	struct player_comm comm = make_comm(1, "dp", 2, RANKS);
	struct player_op op = player_coll(PLAYER_BROADCAST, 4096);

	for (unsigned i = 0; i < 120; i++) {
		op.root = (int)(i % 4);
		player_enqueue_api_only(&comm, &op);
	}
	pause_s(3);
	player_finalize(&comm);
}

/* Sends to all others and Recvs of all others. */
static unsigned make_parts(struct player_op *parts, int n_ranks)
{
	unsigned count = 0;

	for (int peer = 0; peer < n_ranks; peer++) {
		if (peer == 3)
			continue;
		parts[count++] = player_p2p(PLAYER_SEND, peer, 4096);
		parts[count++] = player_p2p(PLAYER_RECV, peer, 4096);
	}
	return count;
}

/* All channels of all parts begin before any ends: one kernel runs them. */
static void run_parts(struct player_comm *comm, struct player_op *parts, unsigned count)
{
	uint64_t end_ns = now_ns();

	for (unsigned i = 0; i < count; i++)
		for (unsigned channel = 0; channel < parts[i].channels; channel++)
			player_kernel_start(comm, &parts[i], channel, end_ns - 5000);
	for (unsigned i = 0; i < count; i++)
		for (unsigned channel = 0; channel < parts[i].channels; channel++)
			player_kernel_stop(comm, &parts[i], channel, end_ns);
}

/* A communicator that does not block: the call has returned before its tasks are told. */
static void order_late_group(void)
{
	static struct player_op parts[PARTS_MAX];
	struct player_comm comm = make_comm(1, "moe", 1, RANKS);

	for (unsigned turn = 0; turn < 100; turn++) {
		unsigned count = make_parts(parts, RANKS);
		struct player_group group;

		player_group_begin(&group, &comm, 2, false);
		for (unsigned i = 0; i < count; i++)
			player_group_call(&group, &parts[i]);
		player_group_launch(&group);
		if (player.version >= 5)
			player_group_captured(&group);
		player_group_tasks(&group);
		player_group_end(&group);
		run_parts(&comm, parts, count);
	}
	player_finalize(&comm);
}

/* One call over eight communicators: the plans of all are told while the first one's GroupApi is
 * open. */
static void order_groups_of_many(void)
{
	static struct player_op parts[RANKS][2 * RANKS];
	struct player_comm comms[RANKS];

	for (unsigned i = 0; i < RANKS; i++)
		comms[i] = make_comm(i + 1, "ep", 1, RANKS);
	for (unsigned turn = 0; turn < 100; turn++) {
		struct player_group groups[RANKS];
		unsigned count = 0;

		for (unsigned i = 0; i < RANKS; i++) {
			count = make_parts(parts[i], RANKS);
			player_group_begin(&groups[i], &comms[i], 2, false);
			for (unsigned part = 0; part < count; part++)
				player_group_call(&groups[i], &parts[i][part]);
		}
		for (unsigned i = 0; i < RANKS; i++)
			player_group_launch(&groups[i]);
		for (unsigned i = 0; i < RANKS; i++)
			player_group_tasks(&groups[i]);
		for (unsigned i = 0; i < RANKS; i++)
			player_group_end(&groups[i]);
		for (unsigned i = 0; i < RANKS; i++)
			run_parts(&comms[i], parts[i], count);
	}
	for (unsigned i = 0; i < RANKS; i++)
		player_finalize(&comms[i]);
}

static void order_large_group(void)
{
	static struct player_op parts[PARTS_MAX];
	struct player_comm comm = make_comm(1, "world", MANY_RANKS / 8, MANY_RANKS);

	for (unsigned turn = 0; turn < 5; turn++) {
		unsigned count = make_parts(parts, MANY_RANKS);

		player_enqueue_group(&comm, parts, count);
		run_parts(&comm, parts, count);
	}
	player_finalize(&comm);
}

/* Communicators that come and go, each of another name. */
static void order_short_lives(void)
{
	char name[16];

	for (unsigned i = 0; i < 200; i++) {
		snprintf(name, sizeof(name), "n%u", i);
		struct player_comm comm = make_comm(i + 1, name, 1, RANKS);

		for (unsigned kind = 0; kind < 10; kind++) {
			struct player_op op = player_coll(PLAYER_ALLREDUCE, 64ull << kind);

			player_enqueue(&comm, &op);
			run_kernel(&comm, &op);
		}
		player_finalize(&comm);
	}
}

static const struct {
	const char *name;
	void (*play)(void);
} orders[] = {
	{ "collnet", order_collnet },
	{ "half", order_half },
	{ "slow_rail", order_slow_rail },
	{ "symmetric_graph", order_symmetric_graph },
	{ "symmetric_plan", order_symmetric_plan },
	{ "labels", order_labels },
	{ "broadcast_calls", order_broadcast_calls },
	{ "late_group", order_late_group },
	{ "groups_of_many", order_groups_of_many },
	{ "large_group", order_large_group },
	{ "short_lives", order_short_lives },
};

int main(int argc, char **argv)
{
	if (argc != 4 || !player_open(&player, argv[1], atoi(argv[2])))
		return 1;
	for (size_t i = 0; i < sizeof(orders) / sizeof(*orders); i++) {
		if (strcmp(argv[3], orders[i].name) != 0)
			continue;
		orders[i].play();
		player_close(&player);
		return 0;
	}
	return 1;
}
