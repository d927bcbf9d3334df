/* SPDX-License-Identifier: Apache-2.0 */
/* works.c LIBRARY VERSION ORDER - plays how NCCL finds the times of an operation: by a number that
 * its host and its kernels count apart from each other.
 *
 * From NCCL's source: src/proxy.cc (incWorkCounter), src/device/common.h (profiler),
 * src/transport/profiler.cc; what 2.31 does not count is in NVIDIA/nccl #2368. AllReduces take 5 us
 * and ReduceScatters 50.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "player.h"

#define RING 64u /* works of a channel whose times NCCL can read */
#define SHORT_NS 5000u
#define LONG_NS 50000u
#define TURNS 100u
#define OWN_RANK 3

static struct player player;
static uint64_t clock_ns; /* the GPU's */

/* Of the only channel. */
static struct {
	uint64_t host, device;
	bool persistent; /* planner.persistent: nothing was called since the last capture */
	struct {
		uint64_t number, start_ns, stop_ns;
	} ring[RING];
} works;

static struct player_comm make_comm(void)
{
	struct player_comm comm = {
		.name = "dp", .id = 1, .n_nodes = 1, .n_ranks = 8, .rank = OWN_RANK
	};
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	clock_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
	player_init(&player, &comm);
	return comm;
}

static void run_work(uint64_t time_ns)
{
	uint64_t number = ++works.device;

	clock_ns += 2000;
	works.ring[number % RING].number = number;
	works.ring[number % RING].start_ns = clock_ns;
	clock_ns += time_ns;
	works.ring[number % RING].stop_ns = clock_ns;
}

/* What NCCL's thread does when it looks for that work: whatever is in its place, if it is not
 * older. */
static void report(struct player_comm *comm, struct player_op *op, uint64_t number)
{
	if (works.ring[number % RING].number >= number)
		player_kernel(comm, op, works.ring[number % RING].start_ns,
		              works.ring[number % RING].stop_ns);
}

static struct player_op make_op(enum player_func func)
{
	struct player_op op = player_coll(func, 4096);

	op.channels = 1;
	return op;
}

static uint64_t time_of(const struct player_op *op)
{
	return op->func == PLAYER_REDUCESCATTER ? LONG_NS : SHORT_NS;
}

static void call(struct player_comm *comm, enum player_func func)
{
	struct player_op op = make_op(func);

	works.persistent = false;
	player_enqueue(comm, &op);
	works.host++;
	run_work(time_of(&op));
	report(comm, &op, works.host);
}

/* Out of place: a work for the kernel, and none for the host before 2.31. */
static void send_to_self(struct player_comm *comm)
{
	struct player_op both[] = { player_p2p(PLAYER_SEND, OWN_RANK, 4096),
	                            player_p2p(PLAYER_RECV, OWN_RANK, 4096) };

	works.persistent = false;
	player_enqueue_group(comm, both, 2);
	works.host += player.version >= 7;
	run_work(SHORT_NS);
}

static void order_self(void)
{
	struct player_comm comm = make_comm();

	for (unsigned turn = 0; turn < TURNS; turn++)
		call(&comm, PLAYER_ALLREDUCE);
	send_to_self(&comm);
	for (unsigned turn = 0; turn < TURNS; turn++)
		call(&comm, PLAYER_REDUCESCATTER);
	player_finalize(&comm);
}

/* The launch of a graph: its host counts it before 2.31 if nothing was called since the capture,
 * and else looks for the work that it counted last for it. */
static void launch(struct player_comm *comm, struct player_group *group, struct player_op *op,
                   uint64_t *number)
{
	bool counts = player.version >= 7 || works.persistent;

	player_group_tasks(group);
	player_group_end(group);
	if (counts)
		*number = ++works.host;
	else
		report(comm, op, *number); /* it is there already */
	run_work(time_of(op));
	if (counts)
		report(comm, op, *number);
}

static void play_graph(bool with_calls)
{
	struct player_comm comm = make_comm();
	struct player_op op = make_op(PLAYER_ALLREDUCE);
	struct player_group group;
	uint64_t number = 0;

	call(&comm, PLAYER_REDUCESCATTER);
	player_group_begin(&group, &comm, 1, true);
	player_group_call(&group, &op);
	player_group_captured(&group);
	works.persistent = true;
	for (unsigned turn = 0; turn < TURNS; turn++) {
		launch(&comm, &group, &op, &number);
		if (with_calls)
			call(&comm, PLAYER_REDUCESCATTER);
	}
	player_finalize(&comm);
}

static void order_graph(void)
{
	play_graph(false);
}

static void order_graph_and_calls(void)
{
	play_graph(true);
}

/* From 2.31 on the host does not count it, for its task has lost the mask. */
static void order_broadcast(void)
{
	struct player_comm comm = make_comm();
	struct player_op op = make_op(PLAYER_BROADCAST);

	for (unsigned turn = 0; turn < TURNS; turn++)
		call(&comm, PLAYER_ALLREDUCE);
	player_enqueue_api_only(&comm, &op);
	works.host += player.version < 7;
	run_work(SHORT_NS);
	for (unsigned turn = 0; turn < TURNS; turn++)
		call(&comm, PLAYER_REDUCESCATTER);
	player_finalize(&comm);
}

/* With NCCL_ALLGATHERV_ENABLE=0 it is an operation as any other. */
static void order_told_broadcast(void)
{
	struct player_comm comm = make_comm();

	call(&comm, PLAYER_BROADCAST);
	for (unsigned turn = 0; turn < TURNS; turn++)
		call(&comm, PLAYER_REDUCESCATTER);
	player_finalize(&comm);
}

/* NCCL's thread looks when the works of most operations have been overwritten by those of later
 * ones. */
static void order_late_thread(void)
{
	static struct player_op ops[4 * RING];
	struct player_comm comm = make_comm();

	for (unsigned i = 0; i < 4 * RING; i++) {
		ops[i] = make_op(PLAYER_ALLREDUCE);
		player_enqueue(&comm, &ops[i]);
		run_work(SHORT_NS);
	}
	for (unsigned i = 0; i < 4 * RING; i++)
		report(&comm, &ops[i], ++works.host);
	for (unsigned turn = 0; turn < TURNS; turn++)
		call(&comm, PLAYER_REDUCESCATTER);
	player_finalize(&comm);
}

/* It saw the start of the first one in time, and its stop when all had run: the ReduceScatters'
 * places have AllReduces. */
static void order_late_stop(void)
{
	static struct player_op ops[2 * RING];
	struct player_comm comm = make_comm();

	for (unsigned i = 0; i < 2 * RING; i++) {
		ops[i] = make_op(i < RING ? PLAYER_REDUCESCATTER : PLAYER_ALLREDUCE);
		player_enqueue(&comm, &ops[i]);
	}
	run_work(LONG_NS);
	player_kernel_start(&comm, &ops[0], 0, works.ring[1].start_ns);
	for (unsigned i = 1; i < 2 * RING; i++)
		run_work(time_of(&ops[i]));
	player_kernel_stop(&comm, &ops[0], 0, works.ring[1].stop_ns);
	for (unsigned i = 1; i < 2 * RING; i++)
		report(&comm, &ops[i], i + 1);
	player_finalize(&comm);
}

static const struct {
	const char *name;
	void (*play)(void);
} orders[] = {
	{ "self", order_self },
	{ "graph", order_graph },
	{ "graph_and_calls", order_graph_and_calls },
	{ "broadcast", order_broadcast },
	{ "told_broadcast", order_told_broadcast },
	{ "late_thread", order_late_thread },
	{ "late_stop", order_late_stop },
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
