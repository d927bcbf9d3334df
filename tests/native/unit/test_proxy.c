/* SPDX-License-Identifier: Apache-2.0 */
/* Network detail: what the proxy tells, and what it must not be trusted with. */
#include "netbox.h"

static void test_sending(void)
{
	begin();
	void *op = send_to(5), *step = net_step_start(&net, op);

	tell(step, ABI_STATE_SEND_GPU_WAIT);
	pass(3 * MS);
	for (unsigned i = 0; i < 4; i++) { /* NCCL tries again and again */
		tell(step, ABI_STATE_SEND_PEER_WAIT);
		pass(5 * MS);
	}
	tell(step, ABI_STATE_SEND_WAIT);
	pass(7 * MS);
	net_stop(&net, step);
	pass(100 * MS);
	net_stop(&net, op);
	ok(waited(entry(5, true), 3, 20, 7, 0),
	   "a step that sends waits for the GPU, the receiver, the wire");
	ok(entry(5, true)->steps == 1 && !entry(5, false)->used, "it is counted, by direction");
	ok(!slots_in_use() && !stale(), "and leaves nothing");
}

static void test_receiving(void)
{
	begin();
	void *op = op_of(comm, 2, false), *step = net_step_start(&net, op);

	tell(step, ABI_STATE_RECV_WAIT);
	pass(11 * MS);
	tell(step, ABI_STATE_RECV_FLUSH_WAIT);
	pass(2 * MS);
	tell(step, ABI_STATE_RECV_GPU_WAIT);
	pass(4 * MS);
	net_stop(&net, step);
	ok(waited(entry(2, false), 4, 0, 11, 2),
	   "one that receives waits for the wire, the flush, the GPU");
}

/* Three steps as NCCL posts them: at once. */
static void test_steps_behind_a_step(void)
{
	begin();
	void *op = send_to(1), *steps[3];

	for (unsigned i = 0; i < 3; i++) {
		steps[i] = net_step_start(&net, op);
		tell(steps[i], ABI_STATE_SEND_GPU_WAIT);
	}
	pass(1 * MS);
	tell(steps[0], ABI_STATE_SEND_PEER_WAIT);
	pass(50 * MS);
	ok(waited(entry(1, true), 1, 0, 0, 0), "the two behind are not said to wait for the GPU");
	tell(steps[0], ABI_STATE_SEND_WAIT);
	tell(steps[1], ABI_STATE_SEND_PEER_WAIT);
	pass(10 * MS);
	net_stop(&net, steps[1]); /* out of order */
	pass(10 * MS);
	net_stop(&net, steps[0]);
	pass(5 * MS);
	ok(waited(entry(1, true), 1, 50, 20, 0), "only the oldest one's waiting counts");
	net_stop(&net, steps[2]);
	ok(waited(entry(1, true), 6, 50, 20, 0) && entry(1, true)->steps == 3,
	   "then that of the next unfinished one");
}

static void test_operations_end_without_their_steps(void)
{
	begin();
	void *op = send_to(1), *step = net_step_start(&net, op);

	pass(6 * MS);
	net_stop(&net, op);
	pass(6 * MS);
	tell(step, ABI_STATE_SEND_WAIT);
	net_stop(&net, step);
	net_stop(&net, op);
	ok(waited(entry(1, true), 6, 0, 0, 0), "a step ends with its operation");
	ok(stale() == 3 && !slots_in_use(), "what comes later is stale, and counted");
	ok(!net_step_start(&net, op) && stale() == 4, "so is a step of an operation that is over");
}

static void test_handles_of_earlier_steps(void)
{
	begin();
	void *op = send_to(1), *first = net_step_start(&net, op), *last = first;

	for (unsigned i = 0; i < 70; i++) { /* the numbers in handles go round */
		net_stop(&net, last);
		last = net_step_start(&net, op);
		pass(1 * MS);
	}
	ok(last && entry(1, true)->steps == 71 && !stale(),
	   "an operation may have any number of steps");
	void *over = net_step_start(&net, op);

	net_stop(&net, over);
	net_stop(&net, over);
	tell(over, ABI_STATE_SEND_WAIT);
	round_now();
	ok(stale() == 2 && waited(entry(1, true), 70, 0, 0, 0), "a step ends once");
	net_stop(&net, first);
	ok(stale() == 3, "and its handle ends no other");
	unsigned more = 0;

	while (net_step_start(&net, op) && more < 100)
		more++;
	ok(more < 16 && box.header->net_missed == 1,
	   "of more steps at a time than NCCL has the rest is not followed");
}

static void test_whose_operations(void)
{
	begin();
	ok(!net_op_start(&net, comm, NULL, &(struct abi_proxy_op){ .pid = PID + 1, .peer = 1 }),
	   "another process' operation (PXN) is not ours, whatever its context");
	ok(!op_of(NULL, 1, true) && !op_of(handle_context_beyond(), 1, true) &&
	       !op_of((void *)0x7f0012345678, 1, true),
	   "nor one of a communicator that has no record");
	ok(!op_of(comm, 8, false) && op_of(comm, 7, false),
	   "nor what CollNet exchanges with the switch: to NCCL a receive from the rank behind the "
	   "last one");
	ok(box.header->net_missed == 5, "what is not followed is counted");
	ok(!net_step_start(&net, NULL), "a step without an operation is not followed");
	track.active = false;
	ok(!send_to(1) && box.header->net_missed == 5, "nor anything in a forked child");
	track.active = true;
	void *op = send_to(1), *step = net_step_start(&net, op);

	track.active = false;
	pass(5 * MS);
	net_stop(&net, step);
	net_stop(&net, op);
	ok(!all_ns(entry(1, true)), "what was under way, too");
}

static void test_foreign_handles(void)
{
	begin();
	for (uintptr_t kind = 0; kind < 16; kind++) {
		void *odd = (void *)(0xffffffffffff0ull | kind), *small = (void *)kind;

		net_stop(&net, odd);
		net_stop(&net, small);
		tell(odd, ABI_STATE_SEND_WAIT);
		tell(small, ABI_STATE_SEND_WAIT);
		ok(!net_step_start(&net, odd) && !net_step_start(&net, small),
		   "handle ...%x means nothing", (unsigned)kind);
	}
	void *op = send_to(1), *step = net_step_start(&net, op);

	for (int state = -3; state < 40; state++)
		if (state < 8 || (state > 12 && state != 20))
			tell(step, state);
	tell(step, INT32_MIN);
	tell(step, INT32_MAX);
	tell(op, ABI_STATE_SEND_WAIT);
	pass(9 * MS);
	net_stop(&net, step);
	ok(waited(entry(1, true), 9, 0, 0, 0), "states that are none of a step change nothing");
}

static void test_full_pool(void)
{
	begin();
	static void *ops[NET_OPS];
	unsigned had = 0;

	for (unsigned i = 0; i < NET_OPS; i++)
		had += (ops[i] = send_to((int)(i % 8))) != NULL;
	ok(had == NET_OPS && !send_to(1) && box.header->net_missed == 1,
	   "as many are followed as there are slots");
	for (unsigned i = 0; i < NET_OPS; i += 2)
		net_stop(&net, ops[i]);
	had = 0;
	for (unsigned i = 0; i < NET_OPS; i++)
		had += send_to(1) != NULL;
	ok(had == NET_OPS / 2, "and again when some end (%u)", had);
}

static void test_full_table(void)
{
	begin();
	comm = comms_add(
	    &track, &(struct comm_fields){ .id = 8, .name = "large", .nranks = 1000, .rank = 3 });
	unsigned had = 0;

	for (int peer = 0; peer < 1000; peer++) {
		void *op = send_to(peer);

		had += op != NULL;
		net_stop(&net, op);
	}
	ok(had > BOX_NETS * 3 / 4 && had <= BOX_NETS, "the first peers have entries (%u)", had);
	ok(!slots_in_use() && box.header->net_missed == 1000 - had, "who has none takes no slot");
}

int main(void)
{
	test_sending();
	test_receiving();
	test_steps_behind_a_step();
	test_operations_end_without_their_steps();
	test_handles_of_earlier_steps();
	test_whose_operations();
	test_foreign_handles();
	test_full_pool();
	test_full_table();
	return done_testing();
}
