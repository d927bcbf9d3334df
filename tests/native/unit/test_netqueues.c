/* SPDX-License-Identifier: Apache-2.0 */
/* Network detail: what the steps moved, over which queue pairs, and numbers that cannot be true. */
#include <pthread.h>
#include <string.h>

#include "netbox.h"

#define SENT 1 /* to this rank */
#define TIB (1ull << 40)

static struct abi_net_ib on_queue(int device, int number, uint64_t length)
{
	return (
	    struct abi_net_ib){ .type = ABI_NET_IB_QP,
	                        .qp = { .device = device, .number = number, .length = length } };
}

static void tell_ib(void *step, const struct abi_net_ib *ib)
{
	net_plugin_start(&net, step, &(struct abi_net_plugin){ ABI_NET_IB_V1, ib });
}

static const struct box_net_queue *queue(const struct box_net *of, int device, int number)
{
	static const struct box_net_queue none;

	for (unsigned i = 0; i < BOX_NET_QUEUES; i++)
		if (of->queues[i].pair ==
		    ((uint32_t)device << BOX_QUEUE_NUMBER_BITS | (uint32_t)number))
			return &of->queues[i];
	return &none;
}

/* What another step left in the arguments comes with every other state. */
static void test_bytes_of_a_step(void)
{
	begin();
	void *op = send_to(SENT), *first = net_step_start(&net, op),
	     *second = net_step_start(&net, op);

	tell_bytes(first, ABI_STATE_SEND_GPU_WAIT, 77);
	for (unsigned i = 0; i < 3; i++)
		tell_bytes(first, ABI_STATE_SEND_PEER_WAIT, 77);
	tell_bytes(first, ABI_STATE_SEND_WAIT, 1000);
	tell_bytes(first, ABI_STATE_SEND_WAIT, 1000);
	tell_bytes(second, ABI_STATE_SEND_PEER_WAIT, 1000);
	tell_bytes(second, ABI_STATE_SEND_WAIT, 24);
	ok(entry(SENT, true)->bytes == 1024, "a step's bytes count once, when it is sent");
	void *from = op_of(comm, 2, false), *step = net_step_start(&net, from);

	tell_bytes(step, ABI_STATE_RECV_WAIT, 99);
	tell_bytes(step, ABI_STATE_RECV_FLUSH_WAIT, 300);
	tell_bytes(step, ABI_STATE_RECV_GPU_WAIT, 300);
	ok(entry(2, false)->bytes == 300, "and when it has come");
	ok(entry(SENT, true)->steps == 2 && !entry(SENT, true)->refused &&
	       !entry(2, false)->refused,
	   "nothing is refused");
}

static void test_bytes_that_cannot_be_true(void)
{
	begin();
	static const size_t sizes[] = { TIB + 1, 1ull << 63, SIZE_MAX, (size_t)-4096 };
	void *op = send_to(SENT);

	for (unsigned i = 0; i < 4; i++) {
		void *step = net_step_start(&net, op);

		tell_bytes(step, ABI_STATE_SEND_WAIT, sizes[i]);
		net_stop(&net, step);
	}
	void *step = net_step_start(&net, op);

	tell_bytes(step, ABI_STATE_RECV_FLUSH_WAIT, 5);
	tell(step, ABI_STATE_SEND_WAIT); /* without arguments */
	net_stop(&net, step);
	step = net_step_start(&net, op);
	tell_bytes(step, ABI_STATE_SEND_WAIT, TIB);
	ok(entry(SENT, true)->bytes == TIB && entry(SENT, true)->refused == 4,
	   "no network takes more than a TiB at once: more is refused and counted");
}

static void test_queue_pairs(void)
{
	begin();
	void *op = send_to(SENT), *step = net_step_start(&net, op);
	struct abi_net_ib ib;

	for (int i = 0; i < 10; i++) {
		ib = on_queue(i % 2, 100 + i % 2, 1000);
		tell_ib(step, &ib);
	}
	const struct box_net *sent = entry(SENT, true);

	ok(queue(sent, 0, 100)->requests == 5 && queue(sent, 0, 100)->bytes == 5000 &&
	       queue(sent, 1, 101)->bytes == 5000,
	   "requests and bytes are known by device and queue pair");
	ib = on_queue(1, 100, 7);
	tell_ib(step, &ib);
	ok(queue(sent, 1, 100)->bytes == 7 && queue(sent, 0, 100)->bytes == 5000,
	   "a number of a queue pair is another one on another device");
	for (int i = 0; i < 5; i++) {
		ib = on_queue(0, 500 + i, 10);
		tell_ib(step, &ib);
	}
	ok(queue(sent, 0, 500)->requests == 1 && sent->other_requests == 4 &&
	       sent->other_bytes == 40,
	   "beyond four they are counted together");
	ib = on_queue(3, 0xffffff, UINT32_MAX);
	tell_ib(step, &ib);
	ok(!sent->refused && sent->other_bytes == 40 + (uint64_t)UINT32_MAX,
	   "the largest numbers are good");
}

/* NCCL fills in the length of sends only; what a receive has there is left from before. */
static void test_lengths_of_receives(void)
{
	begin();
	void *op = op_of(comm, 2, false), *step = net_step_start(&net, op);
	struct abi_net_ib ib = on_queue(0, 9, 1ull << 63);

	tell_ib(step, &ib);
	ok(queue(entry(2, false), 0, 9)->requests == 1 && !queue(entry(2, false), 0, 9)->bytes &&
	       !entry(2, false)->refused,
	   "the length of a receive is not looked at");
}

static void test_sockets(void)
{
	begin();
	void *op = send_to(SENT), *step = net_step_start(&net, op);

	net_plugin_start(&net, step, &(struct abi_net_plugin){ ABI_NET_SOCKET_V1, NULL });
	ok(entry(SENT, true)->socket_requests == 1 && !entry(SENT, true)->refused,
	   "sockets are counted");
}

static void test_payloads_that_are_not_believed(void)
{
	begin();
	void *op = send_to(SENT), *step = net_step_start(&net, op);
	const struct abi_net_ib good = on_queue(0, 100, 1);
	struct abi_net_ib odd[] = {
		on_queue(1 << 30, 100, 1),    on_queue(-1, 100, 1),
		on_queue(4, 100, 1),          on_queue(0, 0, 1),
		on_queue(0, -100, 1),         on_queue(0, 1 << 24, 1),
		on_queue(0, 100, 1ull << 63), on_queue(0, 100, 1ull << 32),
		on_queue(0, 100, 1),
	};
	static const int64_t ids[] = { 0,
	                               1,
	                               1 << 16,
	                               1 << 16 | 2,
	                               2 << 16 | 2,
	                               3 << 16 | 1,
	                               0x7fff << 16 | 1,
	                               -1,
	                               INT64_MIN,
	                               ABI_NET_IB_V1 | 1ll << 32 };
	unsigned told = 0;

	odd[8].type = 2;
	for (unsigned i = 0; i < sizeof(odd) / sizeof(*odd); i++, told++)
		tell_ib(step, &odd[i]);
	for (unsigned i = 0; i < sizeof(ids) / sizeof(*ids); i++, told++)
		net_plugin_start(&net, step, &(struct abi_net_plugin){ ids[i], &good });
	for (uintptr_t at = 0; at < 4096; at += 511, told++)
		tell_ib(step, (const void *)at);
	tell_ib(step, (const void *)((const char *)&good + 1));
	ok(entry(SENT, true)->refused == told + 1, "each is counted as refused (%u)",
	   entry(SENT, true)->refused);
	ok(!entry(SENT, true)->queues[0].pair && !entry(SENT, true)->other_requests &&
	       !entry(SENT, true)->bytes,
	   "and nothing of it is kept");
}

static void test_steps_that_are_none(void)
{
	begin();
	void *op = send_to(SENT), *step = net_step_start(&net, op);
	const struct abi_net_ib good = on_queue(0, 100, 1);

	tell_ib(NULL, &good);
	tell_ib(op, &good);
	tell_ib((void *)0xfffffffffff7ull, &good);
	net_stop(&net, op);
	tell_ib(step, &good);
	ok(!entry(SENT, true)->queues[0].pair && stale() == 2,
	   "of what is no step, or over, nothing is kept");
}

static void test_an_entry_that_serves_another(void)
{
	begin();
	void *op = send_to(SENT), *step = net_step_start(&net, op);
	struct abi_net_ib ib = on_queue(0, 100, 1);

	for (int i = 0; i < 6; i++) {
		ib.qp.number = 100 + i;
		tell_ib(step, &ib);
	}
	ib.qp.device = 9;
	tell_ib(step, &ib);
	net_plugin_start(&net, step, &(struct abi_net_plugin){ ABI_NET_SOCKET_V1, NULL });
	tell_bytes(step, ABI_STATE_SEND_WAIT, 1000);
	net_stop(&net, op);
	comms_remove(&track, comm);
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		comms_remove(&track,
		             comms_add(&track, &(struct comm_fields){ .id = 50 + i, .nranks = 8 }));
	round_now();
	round_now();
	static const struct box_net_queue none;
	unsigned left = 0;

	for (unsigned i = 0; i < BOX_NETS; i++) {
		const struct box_net *one = &box.nets[i];

		left += one->bytes || one->refused || one->socket_requests || one->other_requests ||
		        one->other_bytes;
		for (unsigned q = 0; q < BOX_NET_QUEUES; q++)
			left += memcmp(&one->queues[q], &none, sizeof(none)) != 0;
	}
	ok(!entry(SENT, true)->used && !left,
	   "an entry that is free again has nothing of what it was");
}

/* The socket transport has threads of its own. */
static void *tell_many(void *step)
{
	for (int i = 0; i < 20000; i++) {
		struct abi_net_ib ib = on_queue(i % 4, 1 + i % 6, 10);

		tell_ib(step, &ib);
	}
	return NULL;
}

static void test_several_threads(void)
{
	begin();
	void *op = send_to(SENT), *step = net_step_start(&net, op);
	pthread_t threads[3];
	uint64_t requests, bytes;

	for (unsigned i = 0; i < 3; i++)
		pthread_create(&threads[i], NULL, tell_many, step);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	const struct box_net *sent = entry(SENT, true);

	requests = sent->other_requests;
	bytes = sent->other_bytes;
	for (unsigned i = 0; i < BOX_NET_QUEUES; i++) {
		requests += sent->queues[i].requests;
		bytes += sent->queues[i].bytes;
		for (unsigned other = 0; other < i; other++)
			ok(sent->queues[i].pair != sent->queues[other].pair,
			   "no queue pair has two places");
	}
	ok(requests == 60000 && bytes == 600000, "threads that come at the same time lose nothing");
}

int main(void)
{
	test_bytes_of_a_step();
	test_bytes_that_cannot_be_true();
	test_queue_pairs();
	test_lengths_of_receives();
	test_sockets();
	test_payloads_that_are_not_believed();
	test_steps_that_are_none();
	test_an_entry_that_serves_another();
	test_several_threads();
	return done_testing();
}
