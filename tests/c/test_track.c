/* SPDX-License-Identifier: Apache-2.0 */
/* The hot path against what NCCL does and must not be trusted with: odd orders, stale handles, missing events. */
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "comms.h"
#include "log2.h"
#include "sweep.h"
#include "tap.h"

static struct box box;
static struct track track;
static struct sweep sweep;
static void *comm;

static void begin(void)
{
	int error;

	box_open(&box, -1, "0", &error);
	track_init(&track, &box, clock_calibrate(), true);
	memset(&sweep, 0, sizeof(sweep));
	comm = comms_add(&track, &(struct comm_words){ .id = 7, .name = "c", .nranks = 8, .nnodes = 2, .rank = 3 });
}

static void *start(void *context, unsigned channels, uint64_t count)
{
	return track_start(&track, context,
			   &(struct event){ .kind = EVENT_OPERATION, .peer = -1, .func = "AllReduce",
					    .datatype = "ncclFloat32", .algo = "RING", .proto = "SIMPLE",
					    .count = count, .channels = (uint8_t)channels });
}

static void *kernel(void *parent, unsigned channel, uint64_t gpu_ns)
{
	return track_start(&track, comm,
			   &(struct event){ .kind = EVENT_KERNEL, .parent = parent,
					    .channel = (uint8_t)channel, .gpu_ns = gpu_ns });
}

static uint64_t dropped(enum box_drop reason)
{
	return box.header->dropped[reason];
}

static uint64_t completed(void)
{
	return box.comms[0].completed;
}

static void whole_operation(uint64_t start_ns, uint64_t stop_ns)
{
	void *op = start(comm, 1, 1024);
	void *channel = kernel(op, 9, start_ns);

	track_enqueued(&track, op);
	track_kernel_stop(&track, channel, stop_ns);
}

static void test_time(void)
{
	begin();
	void *op = start(comm, 2, 262144);
	void *late = kernel(op, 17, 1500), *early = kernel(op, 16, 1000);

	track_kernel_stop(&track, early, 21000);
	ok(!completed(), "an operation is not over while a channel runs");
	track_kernel_stop(&track, late, 31000);
	ok(!completed(), "nor before the application has handed it over");
	track_enqueued(&track, op);
	ok(completed() == 1 && box.keys[0].ops == 1, "then it is");
	ok(box.keys[0].busy_ns == 30000, "its time is latest stop less earliest start (%llu ns)",
	   (unsigned long long)box.keys[0].busy_ns);
	ok(box.keys[0].bytes == 1048576 && box.keys[0].size_class == 20, "bytes are elements times their size");
	ok(box.hists[0].count[hist_bucket(30000)] == 1, "the histogram has it");
	ok(box.keys[0].first_index == 1 && box.keys[0].last_index == 1 && box.comms[0].last_sequence == 1,
	   "operations count from 1");
	ok(box.comms[0].enqueued == 1 && box.comms[0].started == 1, "it was enqueued and started");
	whole_operation(5000, 6000);
	ok(completed() == 2 && box.keys[1].size_class == 12, "another size has another key");
}

static void test_odd_orders(void)
{
	begin();
	void *op = start(comm, 1, 1024);
	void *channel = kernel(op, 0, 1000);

	track_kernel_stop(&track, channel, 2000);
	track_enqueued(&track, op);
	ok(completed() == 1, "kernels may be over before the call returns");
	track_enqueued(&track, op);
	track_kernel_stop(&track, channel, 3000);
	ok(completed() == 1 && dropped(BOX_DROP_STALE) == 2, "events after the end are stale and counted");
	void *next = start(comm, 1, 1024);

	kernel(op, 0, 1);
	ok(box.ops[0].started_channels == 0 && dropped(BOX_DROP_STALE) == 3,
	   "a handle of an earlier use does not touch the next");
	track_kernel_stop(&track, kernel(next, 0, 1000), 2000);
	track_enqueued(&track, next);
	ok(completed() == 2, "which completes as if nothing had been");
}

static void test_double_stop(void)
{
	begin();
	void *op = start(comm, 2, 1024);
	void *one = kernel(op, 1, 1000), *two = kernel(op, 2, 1000);

	track_kernel_stop(&track, one, 2000);
	track_kernel_stop(&track, one, 500000);
	track_kernel_stop(&track, two, 2100);
	track_enqueued(&track, op);
	ok(box.keys[0].busy_ns == 1100 && dropped(BOX_DROP_STALE) == 1,
	   "a second stop of a channel does not move the end");
}

static void test_claims(void)
{
	begin();
	void *op = start(comm, 1, 1024);
	uint32_t generation = box.ops[0].generation;

	track_kernel_stop(&track, kernel(op, 0, 1000), 2000);
	track_enqueued(&track, op);
	ok(!track_claim(&box.ops[0], generation), "a use that is over cannot be claimed");
	start(comm, 1, 1024);
	ok(!track_claim(&box.ops[0], generation), "nor can the next one in its name");
	ok(track_claim(&box.ops[0], box.ops[0].generation) && !track_claim(&box.ops[0], box.ops[0].generation),
	   "a use is claimed once");
}

static void test_foreign_handles(void)
{
	begin();
	ok(!kernel(NULL, 0, 1000), "a kernel without a parent has no handle");
	ok(!kernel((void *)0x7ffff7a01234, 0, 1), "nor one with somebody's pointer");
	track_enqueued(&track, NULL);
	track_kernel_stop(&track, NULL, 1);
	track_kernel_stop(&track, (void *)~0ull, 1);
	track_enqueued(&track, (void *)~0ull);
	ok(!start(NULL, 1, 1), "an operation without a context has no handle");
	ok(!start((void *)0x123456789abc, 1, 1), "nor one with a context that is not ours");
	void *op = start(comm, 1, 1024);

	ok(!kernel(op, 64, 1) && dropped(BOX_DROP_IMPLAUSIBLE) == 1, "channels end at 63");
	ok(!completed(), "nothing was measured");
}

static void test_implausible_clocks(void)
{
	begin();
	whole_operation(2000, 1000);
	whole_operation(1000, 1000);
	whole_operation(1000, 3600000000000ull);
	ok(dropped(BOX_DROP_IMPLAUSIBLE) == 3, "times that cannot be are counted");
	ok(!box.keys[0].ops && completed() == 3, "and not measured, but the operations are over");
}

static void test_what_has_no_time(void)
{
	begin();
	ok(!start(comm, 0, 1024), "an operation without channels is not followed");
	ok(!start(comm, 1, 0), "nor one without bytes");
	ok(!track_start(&track, comm, &(struct event){ .kind = EVENT_OPERATION, .peer = 3, .func = "Send",
						       .datatype = "ncclInt8", .count = 99, .channels = 1 }),
	   "nor one to itself");
	ok(dropped(BOX_DROP_UNTIMED) == 3 && box.comms[0].enqueued == 0, "but counted");
	void *op = start(comm, 1, 5);

	track_enqueued(&track, op);
	ok(box.keys[0].size_class == 4 && box.ops[0].bytes == 20, "NULL words are no harm");
}

static void test_null_words(void)
{
	begin();
	void *op = track_start(&track, comm, &(struct event){ .kind = EVENT_OPERATION, .peer = -1, .count = 300,
							      .channels = 1 });

	ok(op && box.ops[0].bytes == 300, "an operation without words has elements of one byte");
	ok(box.keys[0].func == BOX_FUNC_UNKNOWN && box.keys[0].algo == BOX_ALGO_UNKNOWN, "and is unknown");
}

static void test_pool(void)
{
	unsigned got = 0;

	begin();
	for (unsigned i = 0; i < BOX_OPS + 100; i++)
		got += start(comm, 1, 1024) != NULL;
	ok(got == BOX_OPS && dropped(BOX_DROP_NO_SLOT) == 100, "what finds no slot is counted (%u)", got);
	ok(box.comms[0].enqueued == BOX_OPS, "and is not waited for");
	uint64_t ticks_a_second = (1ull << 32) * 1000000000ull / track.ns_per_tick_q32;

	sweep_round(&sweep, &track, clock_ticks() + 61 * ticks_a_second);
	ok(dropped(BOX_DROP_EXPIRED) == BOX_OPS, "a minute later those that never began are let go");
	ok(start(comm, 1, 1024) != NULL, "and there is room again");
}

static void test_missing_channels(void)
{
	uint64_t now, ticks_a_second;

	begin();
	ticks_a_second = (1ull << 32) * 1000000000ull / track.ns_per_tick_q32;
	now = clock_ticks();
	void *op = start(comm, 4, 1024), *hung = start(comm, 4, 1024);

	track_enqueued(&track, op);
	track_kernel_stop(&track, kernel(op, 5, 1000), 3000);
	track_enqueued(&track, hung);
	kernel(hung, 5, 4000);
	sweep_round(&sweep, &track, now + ticks_a_second);
	sweep_round(&sweep, &track, now + 2 * ticks_a_second);
	ok(!completed(), "an operation short of channels is given time");
	sweep_round(&sweep, &track, now + 4 * ticks_a_second);
	ok(completed() == 1 && box.keys[0].busy_ns == 2000, "then what it has counts");
	sweep_round(&sweep, &track, now + 7200 * ticks_a_second);
	ok(completed() == 1 && (box.ops[1].generation & 1), "one that runs stays in flight for hours");
	for (uint64_t i = 2; i < 6; i++) {
		op = start(comm, 4, 1024);
		track_enqueued(&track, op);
		track_kernel_stop(&track, kernel(op, 5, 1000), 3000);
		for (uint64_t s = 0; s < 5; s++)
			sweep_round(&sweep, &track, clock_ticks() + (10 * i + s) * ticks_a_second);
		ok(completed() == i, "the next one of the same kind in the same slot, too (%llu)",
		   (unsigned long long)i);
	}
}

static void test_overtaken(void)
{
	uint64_t ticks_a_second;

	begin();
	ticks_a_second = (1ull << 32) * 1000000000ull / track.ns_per_tick_q32;
	track_enqueued(&track, start(comm, 1, 1024));
	for (int i = 0; i < 100; i++)
		whole_operation(1000, 2000);
	sweep_round(&sweep, &track, clock_ticks() + ticks_a_second);
	ok(!dropped(BOX_DROP_UNTIMED), "an operation without kernel events is given time");
	sweep_round(&sweep, &track, clock_ticks() + 11 * ticks_a_second);
	ok(dropped(BOX_DROP_UNTIMED) == 1, "and let go when a hundred later ones are over");
}

static void test_keys_run_out(void)
{
	static const char *const algos[] = { "TREE", "RING", "NVLS", "PAT" };
	static const char *const protos[] = { "LL", "LL128", "SIMPLE", NULL };

	begin();
	for (uint64_t count = 1; count < 1ull << 40; count *= 2)
		for (int i = 0; i < 16; i++) {
			void *op = track_start(&track, comm,
					       &(struct event){ .kind = EVENT_OPERATION, .peer = -1,
								.func = "AllGather", .datatype = "ncclInt8",
								.algo = algos[i / 4], .proto = protos[i % 4],
								.count = count, .channels = 1 });

			track_kernel_stop(&track, kernel(op, 0, 1000), 2000);
			track_enqueued(&track, op);
		}
	ok(dropped(BOX_DROP_NO_KEY) == 40 * 16 - BOX_KEYS, "kinds beyond the table are counted");
	ok(completed() == 40 * 16, "and their operations are over all the same");
}

static unsigned live_comms(void)
{
	unsigned live = 0;

	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		live += box.comms[i].state == BOX_COMM_LIVE;
	return live;
}

static void test_communicators(void)
{
	void *contexts[BOX_LIVE_COMMS + 1];

	begin();
	whole_operation(1000, 2000);
	contexts[0] = comm;
	for (unsigned i = 1; i <= BOX_LIVE_COMMS; i++)
		contexts[i] = comms_add(&track, &(struct comm_words){ .id = i, .nranks = 2, .name = "x" });
	ok(!start(contexts[BOX_LIVE_COMMS], 1, 1024) && dropped(BOX_DROP_NO_COMM) == 1,
	   "operations of a communicator beyond 64 are counted");
	comms_remove(&track, contexts[BOX_LIVE_COMMS]);
	void *late = start(comm, 1, 1024);

	track_enqueued(&track, late);
	comms_remove(&track, comm);
	comms_remove(&track, comm);
	ok(live_comms() == BOX_LIVE_COMMS - 1, "a communicator ends once");
	void *next = comms_add(&track, &(struct comm_words){ .id = 99, .nranks = 8, .name = "c", .rank = 3, .nnodes = 2 });

	ok(box.comms[0].id == 99 && box.comms[0].completed == 0, "its record serves another");
	ok(box.comms[BOX_LIVE_COMMS].id == 7 && box.comms[BOX_LIVE_COMMS].completed == 1 &&
		   box.keys[0].comm == BOX_LIVE_COMMS && box.keys[0].ops == 1,
	   "and its figures are kept in a folded one");
	track_kernel_stop(&track, kernel(late, 0, 1000), 2000);
	ok(box.comms[0].completed == 0 && dropped(BOX_DROP_EXPIRED) == 1,
	   "an operation that ends later is not credited to the new one");
	ok(!start(comm, 1, 1024) && box.comms[0].enqueued == 0, "a context that is gone starts nothing");
	comm = next;
	whole_operation(1000, 5000);
	comms_remove(&track, next);
	comms_add(&track, &(struct comm_words){ .id = 100, .nranks = 8 });
	ok(box.keys[0].ops == 2 && box.keys[0].busy_ns == 5000 && box.comms[BOX_LIVE_COMMS].folded == 2,
	   "alike communicators fold into one");
}

static void test_keys_of_the_destroyed(void)
{
	begin();
	for (unsigned i = 0; i < 20; i++) {
		comm = comms_add(&track, &(struct comm_words){ .id = i, .nranks = 2, .name = "k" });
		for (unsigned k = 0; k < 13; k++) {
			void *op = start(comm, 1, 4ull << k);

			track_kernel_stop(&track, kernel(op, 0, 1000), 2000);
			track_enqueued(&track, op);
		}
		comms_remove(&track, comm);
	}
	ok(!dropped(BOX_DROP_NO_KEY), "destroyed communicators give their keys back in time");
}

static void test_a_life_of_communicators(void)
{
	char name[16];

	begin();
	for (unsigned i = 0; i < 100000; i++) {
		snprintf(name, sizeof(name), "g%u", i % 50);
		comm = comms_add(&track, &(struct comm_words){ .id = i, .nranks = 2 + (int)(i % 3), .name = name });
		if (i % 100 == 0)
			whole_operation(1000, 2000);
		comms_remove(&track, comm);
	}
	uint64_t ops = 0;

	for (unsigned i = 0; i < BOX_KEYS; i++)
		ops += box.keys[i].ops;
	ok(ops == 1000 && !dropped(BOX_DROP_NO_KEY), "100,000 communicators lose no operation (%llu)",
	   (unsigned long long)ops);
	ok(box.header->comms_created == 100001 && !(box.header->layout_seq & 1), "and are counted");
}

int main(void)
{
	log2_init();
	test_time();
	test_odd_orders();
	test_double_stop();
	test_claims();
	test_foreign_handles();
	test_implausible_clocks();
	test_what_has_no_time();
	test_null_words();
	test_pool();
	test_missing_channels();
	test_overtaken();
	test_keys_run_out();
	test_communicators();
	test_keys_of_the_destroyed();
	test_a_life_of_communicators();
	return done_testing();
}
