/* SPDX-License-Identifier: Apache-2.0 */
/* The hot path against what NCCL does and must not be trusted with: odd orders, stale handles,
 * missing events. */
#include "nccl/abi.h"
#include "hotbox.h"

static void test_time(void)
{
	begin();
	void *op = start(comm, 2, 262144);
	void *early = kernel(op, 16, 1000);

	stop(early, 21000);
	ok(!completed(), "an operation is not over while a channel has not begun");
	stop(kernel(op, 17, 1500), 31000);
	ok(completed() == 1 && box.keys[0].ops == 1, "it is over with its last channel");
	ok(box.keys[0].busy_ns == 30000, "its time is latest stop less earliest start (%llu ns)",
	   (unsigned long long)box.keys[0].busy_ns);
	ok(box.keys[0].bytes == 1048576 && box.keys[0].size_class == 20,
	   "bytes are elements times their size");
	ok(box.hists[0].count[hist_bucket(30000)] == 1, "the histogram has it");
	ok(box.keys[0].first_index == 1 && box.keys[0].last_index == 1 &&
	       box.comms[0].last_sequence == 1,
	   "operations count from 1");
	ok(enqueued(0) == 1 && box.comms[0].started == 1, "it was enqueued and started");
	whole_operation(5000, 6000);
	ok(completed() == 2 && box.keys[1].size_class == 12, "another size has another key");
	ok(box.comms[0].busy == 4 && box.keys[0].begun == box.keys[0].ops,
	   "nobody is left in the communicator");
}

static void test_odd_orders(void)
{
	begin();
	void *op = start(comm, 1, 1024);
	void *channel = kernel(op, 0, 1000);

	stop(channel, 2000);
	stop(channel, 3000);
	ok(completed() == 1 && dropped(BOX_DROP_STALE) == 1,
	   "events after the end are stale and counted");
	void *next = start(comm, 1, 1024);

	kernel(op, 0, 1);
	ok(dropped(BOX_DROP_STALE) == 2, "a handle of an earlier use does not touch the next");
	stop(kernel(next, 0, 1000), 2000);
	ok(completed() == 2, "which completes as if nothing had been");
}

static void test_double_stop(void)
{
	begin();
	void *op = start(comm, 2, 1024);
	void *one = kernel(op, 1, 1000), *two = kernel(op, 2, 1000);

	stop(one, 2000);
	stop(one, 500000);
	stop(two, 2100);
	ok(box.keys[0].busy_ns == 1100 && dropped(BOX_DROP_STALE) == 1,
	   "a second stop of a channel does not move the end");
}

static void test_one_end(void)
{
	begin();
	start(comm, 1, 1024);
	struct box_op *op = &box.ops[0];
	uint32_t generation = op->generation;

	ok(track_in_use(generation) && track_expire(&track, op, generation, TRACK_SLOT_FREE),
	   "a use of a slot can be ended");
	ok(!track_expire(&track, op, generation, TRACK_SLOT_FREE) &&
	       !track_complete(&track, op, generation, TRACK_SLOT_FREE),
	   "once");
	start(comm, 1, 1024);
	start(comm, 1, 1024);
	ok(!track_expire(&track, op, generation, TRACK_SLOT_FREE),
	   "nor is a later use ended in its name");
	ok(box.comms[0].lost == 1 && dropped(BOX_DROP_EXPIRED) == 1, "what is given up is counted");
}

static void test_busy_communicator(void)
{
	begin();
	void *op = start(comm, 1, 1024);
	void *channel = kernel(op, 0, 1000);

	ok(comm_enter(&box.comms[0]) && !comm_enter(&box.comms[0]),
	   "one thread at a time adds to a communicator");
	stop(channel, 4000);
	ok(!completed(), "who finds it busy does not wait");
	comm_leave(&box.comms[0]);
	sweep_round(&sweep, &track, clock_ticks());
	ok(completed() == 1 && box.keys[0].busy_ns == 3000, "the next round adds the operation");
}

static void test_foreign_handles(void)
{
	begin();
	ok(!kernel(NULL, 0, 1000), "a kernel without a parent has no handle");
	ok(!kernel((void *)0x7ffff7a01230, 0, 1), "nor one with somebody's pointer");
	track_kernel_stop(&track, NULL, 1);
	track_kernel_stop(&track, (void *)~0ull, 1);
	track_group_stop(&track, NULL);
	track_group_stop(&track, (void *)~0ull);
	track_phase_stop(&track, (void *)~0ull, 1);
	for (uintptr_t kind = 0; kind < 16; kind++) {
		void *odd = (void *)(0xffffffffffff0ull | kind);

		track_kernel_stop(&track, odd, 1);
		track_group_stop(&track, odd);
		track_phase_stop(&track, odd, 1);
		ok(!kernel(odd, 1, 1) && !p2p(odd, "Send", 3, 100), "handle ...%x means nothing",
		   (unsigned)kind);
	}
	for (uintptr_t kind = 0; kind < 16; kind++) {
		void *odd = (void *)kind; /* as if of a slot that was never used */

		track_kernel_stop(&track, odd, 9);
		track_phase_stop(&track, odd, 9);
		ok(!kernel(odd, 1, 1), "nor does handle %x", (unsigned)kind);
	}
	ok(!box.ops[0].started_channels && !box.ops[0].gpu_start_ns && !box.ops[0].synced_ns,
	   "free slots stay as they are");
	ok(!start(NULL, 1, 1), "an operation without a context has no handle");
	ok(!start((void *)0x123456789abc, 1, 1), "nor one with a context that is not ours");
	void *op = start(comm, 1, 1024);

	ok(!track_kernel_start(&track, op, 64, 1) && dropped(BOX_DROP_IMPLAUSIBLE) == 1,
	   "channels end at 63");
	ok(!completed(), "nothing was measured");
}

static void test_implausible_clocks(void)
{
	begin();
	whole_operation(2000, 1000);
	whole_operation(1000, 1000);
	whole_operation(1000, 3600000000000ull);
	ok(dropped(BOX_DROP_IMPLAUSIBLE) == 3, "times that cannot be are counted");
	ok(!box.keys[0].ops && !completed() && box.comms[0].untimed == 3,
	   "and not measured, but the operations are over");
	ok(box.keys[0].untimed_ops == 3 && box.keys[0].untimed_bytes == 3 * 4096,
	   "and their bytes are counted");
	whole_operation(1000, 2000);
	uint64_t two_s_later = clock_ticks() + 2 * ticks_a_second();

	sweep_round(&sweep, &track, two_s_later);
	whole_operation(3000, 4000);
	ok(dropped(BOX_DROP_IMPLAUSIBLE) == 4 && box.keys[0].ops == 1,
	   "nor are clocks of work that was over seconds before the operation was known");
	whole_operation(2000003000ull, 2000004000ull);
	ok(box.keys[0].ops == 2, "the next one with a clock that goes on is");
}

static void test_what_has_no_time(void)
{
	begin();
	ok(!start(comm, 0, 1024), "an operation without channels is not followed");
	ok(!start(comm, 1, 0), "nor one without bytes");
	ok(!p2p(NULL, "Send", 3, 99), "nor one to itself");
	ok(box.comms[0].untimed == 3 && enqueued(0) == 3, "but counted");
	ok(key_of(BOX_FUNC_SEND)->untimed_ops == 1 && key_of(BOX_FUNC_SEND)->untimed_bytes == 99 &&
	       key_of(BOX_FUNC_SEND)->ops == 0,
	   "with its bytes, by kind, apart from what has a time");
	track_copy_engine(
	    &track, comm,
	    &(struct abi_ce_coll){ .func = "AllGather", .datatype = "ncclFloat32", .count = 100 });
	ok(key_of(BOX_FUNC_ALLGATHER)->algo == BOX_ALGO_CE &&
	       key_of(BOX_FUNC_ALLGATHER)->untimed_bytes == 400,
	   "so are those of copy engines");
	track_copy_engine(
	    &track, comm,
	    &(struct abi_ce_coll){ .func = "AlltoAll", .datatype = "ncclFloat32", .count = 100 });
	ok(key_of(BOX_FUNC_ALLTOALL)->untimed_bytes == 8 * 400,
	   "of an all-to-all the parts of all eight ranks");
	track_copy_engine(&track, comm,
	                  &(struct abi_ce_coll){
			      .func = "Scatter", .datatype = "ncclInt8", .count = 100, .root = 3 });
	ok(key_of(BOX_FUNC_SCATTER)->untimed_bytes == 800, "of a Scatter the root's parts of all");
	track_copy_engine(&track, comm,
	                  &(struct abi_ce_coll){
			      .func = "Gather", .datatype = "ncclInt8", .count = 100, .root = 2 });
	ok(key_of(BOX_FUNC_GATHER)->untimed_bytes == 100,
	   "and of a Gather one's own, to another root");
}

static void call(const char *func)
{
	track_coll_call(
	    &track, comm,
	    &(struct event){
		.peer = EVENT_NO_PEER, .func = func, .datatype = "ncclFloat32", .count = 1000 });
}

static void test_calls_without_operations(void)
{
	begin();
	call("Broadcast");
	call("AllReduce");
	void *op =
	    start(comm, 1, 1024); /* for the second, on the callback thread, after the call */

	call("Broadcast");
	sweep_round(&sweep, &track, clock_ticks());
	call("AllReduce");
	call("Broadcast");
	sweep_round(&sweep, &track, clock_ticks());
	ok(key_of(BOX_FUNC_BROADCAST)->untimed_ops == 2,
	   "a call that no operation follows is one without a time");
	sweep_round(&sweep, &track, clock_ticks());
	ok(key_of(BOX_FUNC_BROADCAST)->untimed_ops == 3 &&
	       key_of(BOX_FUNC_BROADCAST)->untimed_bytes == 12000,
	   "after a round of waiting for it");
	stop(kernel(op, 0, 1), 2);
	uint64_t untimed = 0;

	for (unsigned i = 0; i < BOX_KEYS; i++)
		untimed += box.keys[i].func == BOX_FUNC_ALLREDUCE ? box.keys[i].untimed_ops : 0;
	ok(!untimed, "never one whose kind NCCL does tell of");
}

static void test_counting_only(void)
{
	begin_as(BOX_TIMING_NONE);
	ok(!start(comm, 4, 1024) && !p2p(NULL, "Recv", 1, 77),
	   "without kernel events nothing is followed");
	ok(key_of(BOX_FUNC_ALLREDUCE)->untimed_bytes == 4096 &&
	       key_of(BOX_FUNC_RECV)->untimed_bytes == 77,
	   "and all is counted");
	comm = comms_add(&track, &(struct comm_fields){ .rank = -1 });
	track_name(&track, comm, 0xabc, "late\n", 5);
	track_name(&track, comm, 0xdef, "other", 6);
	ok(box.comms[1].id == 0xabc && box.comms[1].rank == 5 &&
	       !strcmp(box.comms[1].name, "late?"),
	   "the first event names a communicator");
}

static void test_null_words(void)
{
	begin();
	void *op = track_operation(
	    &track, comm, &(struct event){ .peer = EVENT_NO_PEER, .count = 300, .channels = 1 });

	ok(op && box.ops[0].bytes == 300, "an operation without words has elements of one byte");
	ok(box.keys[0].func == BOX_FUNC_UNKNOWN && box.keys[0].algo == BOX_ALGO_UNKNOWN,
	   "and is unknown");
	op = track_operation(&track, comm,
	                     &(struct event){ .peer = EVENT_NO_PEER,
	                                      .count = 300,
	                                      .channels = 1,
	                                      .func = "GROUP",
	                                      .algo = "GROUP",
	                                      .datatype = "Unknown" });
	ok(op && box.ops[1].bytes == 300 && (box.ops[1].kind & 0xffff) == 0,
	   "our own words are not NCCL's");
}

/* Of one communicator: less than the thread's own ring and what is everybody's. */
#define ROOM (BOX_OPS / 2)

static void test_pool(void)
{
	unsigned got = 0;

	begin();
	for (unsigned i = 0; i < ROOM + 100; i++)
		got += start(comm, 1, 1024) != NULL;
	ok(got == ROOM && dropped(BOX_DROP_NO_SLOT) == 100, "what finds no slot is counted (%u)",
	   got);
	ok(enqueued(0) == ROOM + 100 && box.comms[0].lost == 100, "and is not waited for");
	sweep_round(&sweep, &track, clock_ticks());
	sweep_round(&sweep, &track, clock_ticks() + 61 * ticks_a_second());
	ok(dropped(BOX_DROP_EXPIRED) == ROOM, "a minute later those that never began are let go");
	sweep_round(&sweep, &track, clock_ticks() + 62 * ticks_a_second());
	ok(start(comm, 1, 1024) != NULL, "and in the next round there is room again");
}

/* The thread of the kernels found a handle good, then its slot was handed on, and then it stored
 * what it had been told. */
static void test_a_slot_is_handed_on_without_what_is_stored_late(void)
{
	begin();
	for (unsigned i = 0; i < 4 * BOX_OPS; i++) {
		p2p(NULL, "Send", 5, 1000); /* a part without work */
		struct box_op *op = &box.ops[handle_slot(handle_bits(start(comm, 1, 1024)))];
		void *mine = handle_of(handle_of_use((unsigned)(op - box.ops), op->generation));

		if (op->handle & HANDLE_HANDED_ON) {
			op->started_channels |= 1ull << 40;
			op->gpu_start_ns = gpu_ns + 7;
		}
		stop(kernel(mine, 3, 1000 * i + 100), 1000 * i + 600);
	}
	ok(completed() == 4 * BOX_OPS && key_of(BOX_FUNC_ALLREDUCE)->max_ns == 500,
	   "each has its own channels and time (%llu ns)",
	   (unsigned long long)key_of(BOX_FUNC_ALLREDUCE)->max_ns);
	ok(dropped(BOX_DROP_STALE) == 0, "and is followed to its end");
}

static void test_pool_of_the_forgotten(void)
{
	begin();
	for (unsigned i = 0; i < 5 * BOX_OPS; i++) {
		p2p(NULL, "Send", 5, 1000); /* a part without work */
		whole_operation(1000 * i, 1000 * i + 500);
	}
	ok(!dropped(BOX_DROP_NO_SLOT) && completed() == 5 * BOX_OPS,
	   "operations that get no kernel event never take the room of others");
	ok(key_of(BOX_FUNC_SEND)->untimed_ops > 3 * BOX_OPS, "and are counted (%llu)",
	   (unsigned long long)key_of(BOX_FUNC_SEND)->untimed_ops);
}

static void *send_of(unsigned channels)
{
	return track_operation(&track, comm,
	                       &(struct event){ .peer = 5,
	                                        .func = "Send",
	                                        .datatype = "ncclInt8",
	                                        .count = 1024,
	                                        .channels = (uint8_t)channels });
}

static void test_missing_channels(void)
{
	uint64_t now;

	begin();
	now = clock_ticks();
	void *op = send_of(4), *hung = send_of(4);

	stop(kernel(op, 5, 1000), 3000);
	kernel(hung, 5, 4000);
	round_at(now + ticks_a_second());
	round_at(now + 2 * ticks_a_second());
	ok(!completed(), "a Send short of channels is given time");
	round_at(now + 4 * ticks_a_second());
	ok(completed() == 1 && box.keys[0].busy_ns == 2000, "then what it has counts");
	round_at(now + 7200 * ticks_a_second());
	ok(completed() == 1 && track_in_use(box.ops[1].generation),
	   "one that runs stays in flight for hours");
	for (uint64_t i = 2; i < 6; i++) {
		op = send_of(4);
		stop(kernel(op, 5, 1000), 3000);
		for (uint64_t s = 0; s < 5; s++)
			round_at(clock_ticks() + (10 * i + s) * ticks_a_second());
		ok(completed() == i, "the next one of the same kind, too (%llu)",
		   (unsigned long long)i);
	}
}

/* NCCL gives a collective all channels that it announces: one that has yet to begin may be what it
 * hangs in. */
static void test_channels_that_never_begin(void)
{
	uint64_t now;

	begin();
	now = clock_ticks();
	void *hung = start(comm, 4, 1024);

	for (unsigned channel = 0; channel < 3; channel++)
		stop(kernel(hung, channel, 1000), 3000);
	for (uint64_t s = 0; s < 3600; s += 60)
		round_at(now + s * ticks_a_second());
	ok(!completed() && track_in_use(box.ops[0].generation),
	   "a collective short of a channel stays in flight for an hour");
	for (int i = 0; i < 100; i++)
		whole_operation(4000, 5000);
	round_at(now + 3660 * ticks_a_second());
	ok(completed() == 101,
	   "until a hundred later ones are over: its channel's events were lost");
}

static void test_overtaken(void)
{
	begin();
	start(comm, 1, 1024);
	for (int i = 0; i < 100; i++)
		whole_operation(1000, 2000);
	sweep_round(&sweep, &track, clock_ticks() + ticks_a_second());
	ok(!box.comms[0].untimed, "an operation without kernel events is given time");
	sweep_round(&sweep, &track, clock_ticks() + 11 * ticks_a_second());
	ok(box.comms[0].untimed == 1 && box.keys[0].untimed_ops == 1,
	   "and let go when a hundred later ones are over");
}

static void test_a_full_bucket(void)
{
	begin();
	whole_operation(1000, 6000);
	whole_operation(7000, 7500);
	_Atomic uint32_t *bucket = &box.hists[0].count[hist_bucket(5000)],
			 *other = &box.hists[0].count[hist_bucket(500)];

	atomic_store(bucket, UINT32_MAX);
	atomic_store(other, 1000);
	whole_operation(8000, 13000);
	ok(*bucket == UINT32_MAX / 2 + 1 && *other == 500 && box.keys[0].ops == 3,
	   "when a bucket is full all are halved, and the shape stays (%u, %u)", *bucket, *other);
}

int main(void)
{
	log2_init();
	test_time();
	test_odd_orders();
	test_double_stop();
	test_one_end();
	test_busy_communicator();
	test_foreign_handles();
	test_implausible_clocks();
	test_what_has_no_time();
	test_calls_without_operations();
	test_counting_only();
	test_null_words();
	test_pool();
	test_a_slot_is_handed_on_without_what_is_stored_late();
	test_pool_of_the_forgotten();
	test_missing_channels();
	test_channels_that_never_begin();
	test_overtaken();
	test_a_full_bucket();
	return done_testing();
}
