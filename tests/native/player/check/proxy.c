/* SPDX-License-Identifier: Apache-2.0 */
/* proxy.c LIBRARY VERSION GPU_US OTHER_US WIRE_US WAIT_S QUEUES - NCCL's proxy, sending to rank 5
 * and receiving from rank 2.
 *
 * Sixteen steps each, up to eight under way, as NCCL's network transport has them. Each takes so
 * long on the GPU, on the wire, and otherwise: the credit of the receiver, or the flush of what was
 * received. Waits up to WAIT_S for the profiler to ask for steps, with an operation in flight that
 * does not end; prints whether it has.
 *
 * As an NCCL that was built with NET_PROFILER=1 the InfiniBand transport tells of each step on
 * every of QUEUES queue pairs, on two devices in turns; QUEUES 0: it does not, as in NVIDIA's
 * builds. QUEUES below 0: on one queue pair, and besides payloads that nobody should believe. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "player.h"

#define STEPS 16u
#define AHEAD 8u
#define ASKED (PROF_PROXY_OP | PROF_PROXY_STEP | PROF_NET_PLUGIN)
#define STEP_BYTES 4096u
#define FIRST_QUEUE 1000
#define IB_V1 (1 << 16 | 1)

enum {
	SEND_GPU_WAIT = 8,
	SEND_WAIT = 9,
	RECV_WAIT = 10,
	RECV_FLUSH_WAIT = 11,
	RECV_GPU_WAIT = 12,
	SEND_PEER_WAIT = 20
};

/* What NCCL's InfiniBand transport tells of a work request (net_ib_v1.h). */
struct ib_told {
	uint8_t type;
	struct {
		int device;
		uint64_t wr_id;
		int opcode, number;
		size_t length;
	} qp;
};

/* Of one step. */
struct pace {
	uint64_t gpu_ns, other_ns, wire_ns;
};

/* Stages one after the other; each takes one step at a time. */
struct stage {
	uint64_t step_ns, ready_ns; /* when it has the next one, once that has come */
	unsigned steps;
	bool is_busy;
};

static struct player player;
static struct player_comm comm = { .name = "net", .id = 7, .n_nodes = 2, .n_ranks = 8, .rank = 3 };
static void *handles[AHEAD];
static size_t last_size; /* of the step that was sent or received last: it comes with every state */
static int queues;
static bool is_hostile;

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct stage stage_of(uint64_t step_ns)
{
	return (struct stage){ .step_ns = step_ns };
}

/* Whether the stage is through with its step, of which `come` have come to it. */
static bool is_through(struct stage *stage, unsigned come)
{
	if (stage->steps == come)
		return false;
	if (!stage->is_busy)
		stage->ready_ns = now_ns() + stage->step_ns;
	stage->is_busy = true;
	if (now_ns() < stage->ready_ns)
		return false;
	stage->is_busy = false;
	stage->steps++;
	return true;
}

static void tell(unsigned step, int state)
{
	if (state == SEND_WAIT || state == RECV_FLUSH_WAIT)
		last_size = STEP_BYTES * (step + 1);
	play_state(&comm, handles[step % AHEAD], state, last_size);
}

/* One work request; the end of the event comes with its completion, with whatever handle there is.
 */
static void tell_net(unsigned step, int64_t id, const struct ib_told *told)
{
	play_stop(&comm, play_net_plugin(&comm, handles[step % AHEAD], id, (void *)told));
}

static void tell_hostile(unsigned step)
{
	const struct ib_told good = { 1, { 0, 0, 0, FIRST_QUEUE, 1 } },
			     device = { 1, { 1 << 30, 0, 0, FIRST_QUEUE, 1 } },
			     length = { 1, { 0, 0, 0, FIRST_QUEUE, (size_t)1 << 63 } };

	tell_net(step, IB_V1, NULL);
	tell_net(step, IB_V1, &device);
	tell_net(step, IB_V1, &length);
	tell_net(step, IB_V1 + 1, &good);
	tell_net(step, 77 << 16 | 1, &good);
	tell_net(step, 77 << 16 | 1, (const void *)~(uintptr_t)0);
}

/* A step is split over the queue pairs. Of a receive NCCL sets neither opcode nor length. */
static void post_requests(unsigned step, bool is_send)
{
	for (int i = 0; i < queues; i++) {
		struct ib_told told = { 1, { i % 2, step, 1, FIRST_QUEUE + i, (size_t)1 << 62 } };

		if (is_send)
			told.qp.length = STEP_BYTES * (step + 1) / (unsigned)queues;
		tell_net(step, IB_V1, &told);
	}
	if (is_hostile && is_send)
		tell_hostile(step);
}

static void post(void *op, unsigned step, int state)
{
	handles[step % AHEAD] = play_proxy_step(&comm, op, (int)step);
	if (state == RECV_WAIT)
		post_requests(step, false);
	tell(step, state);
}

static void play_sending(void *op, const struct pace *pace)
{
	struct stage gpu = stage_of(pace->gpu_ns), credit = stage_of(pace->other_ns),
		     wire = stage_of(pace->wire_ns);
	unsigned posted = 0;

	while (wire.steps < STEPS) {
		for (; posted < STEPS && posted < wire.steps + AHEAD; posted++)
			post(op, posted, SEND_GPU_WAIT);
		is_through(&gpu, posted);
		if (credit.steps < gpu.steps) {
			tell(credit.steps, SEND_PEER_WAIT); /* at each attempt */
			if (is_through(&credit, gpu.steps)) {
				post_requests(credit.steps - 1, true);
				tell(credit.steps - 1, SEND_WAIT);
			}
		}
		if (is_through(&wire, credit.steps))
			play_stop(&comm, handles[(wire.steps - 1) % AHEAD]);
	}
}

static void play_receiving(void *op, const struct pace *pace)
{
	struct stage wire = stage_of(pace->wire_ns), flush = stage_of(pace->other_ns),
		     gpu = stage_of(pace->gpu_ns);
	unsigned posted = 0;

	while (gpu.steps < STEPS) {
		for (; posted < STEPS && posted < gpu.steps + AHEAD; posted++)
			post(op, posted, RECV_WAIT);
		if (is_through(&wire, posted))
			tell(wire.steps - 1, RECV_FLUSH_WAIT);
		if (is_through(&flush, wire.steps))
			tell(flush.steps - 1, RECV_GPU_WAIT);
		if (is_through(&gpu, flush.steps))
			play_stop(&comm, handles[(gpu.steps - 1) % AHEAD]);
	}
}

static void play_op(void *coll, bool is_send, const struct pace *pace)
{
	struct prof_proxy_op told = {
		.pid = getpid(), .peer = is_send ? 5 : 2, .n_steps = STEPS, .is_send = is_send
	};
	void *op = play_proxy_op(&comm, coll, &told);

	if (is_send)
		play_sending(op, pace);
	else
		play_receiving(op, pace);
	play_stop(&comm, op);
}

static bool is_asked(void)
{
	return (__atomic_load_n(&player.mask, __ATOMIC_RELAXED) & ASKED) == ASKED;
}

int main(int argc, char **argv)
{
	struct player_op op = player_coll(PLAYER_ALLREDUCE, 1 << 20);

	if (argc != 8 || !player_open(&player, argv[1], atoi(argv[2])))
		return 1;
	struct pace pace = { strtoull(argv[3], NULL, 10) * 1000, strtoull(argv[4], NULL, 10) * 1000,
	                     strtoull(argv[5], NULL, 10) * 1000 };
	uint64_t end_ns;

	queues = atoi(argv[7]);
	is_hostile = queues < 0;
	if (is_hostile)
		queues = 1;
	player_init(&player, &comm);
	player_enqueue(&comm, &op);
	end_ns = now_ns() + strtoull(argv[6], NULL, 10) * 1000000000u;
	while (!is_asked() && now_ns() < end_ns)
		usleep(10000);
	printf("%s\n", is_asked() ? "asked" : "not asked");
	fflush(stdout);
	if (is_asked()) {
		play_op(op.handle, true, &pace);
		play_op(op.handle, false, &pace);
	}
	player_finalize(&comm);
	return player.unwritten ? 2 : 0;
}
