/* SPDX-License-Identifier: Apache-2.0 */
/* The quick way of a collective against the way of any operation: what the box has of them is the
 * same. */
#include <pthread.h>

#include "hot/jsonring.h"
#include "nccl/abi.h"
#include "hotbox.h"

static struct abi_coll like_the_load(void)
{
	return (struct abi_coll){ .sequence = 40,
	                          .func = "AllReduce",
	                          .count = 4096,
	                          .datatype = "ncclFloat32",
	                          .channels = 8,
	                          .algo = "RING",
	                          .proto = "SIMPLE" };
}

static _Atomic bool answered = true;

static void *coll(void *context, const struct abi_coll *words)
{
	void *handle = (void *)1;

	if (track_coll(&track, context, words, &handle) || handle == (void *)1)
		answered = false;
	return handle;
}

/* The slot of a handle, without what differs from one operation to the next. */
static struct box_op op_without_turn(void *handle)
{
	struct box_op op = track.ops[handle_slot(handle_bits(handle))];

	ok(handle_of_use(handle_slot(handle_bits(handle)), op.generation) == handle_bits(handle) &&
	       op.handle == handle_bits(handle),
	   "its handle is that of its slot's present use");
	ok(op.enqueue_tick, "its call is timed, as of all first ones");
	op.generation = 0;
	op.index = op.handle = op.enqueue_tick = 0;
	return op;
}

static void test_both_ways_tell_the_same(void)
{
	struct abi_coll words = like_the_load();

	begin();
	for (unsigned class = 0; class < 6; class++, words.count *= 3) {
		void *first = coll(comm, &words), *second = coll(comm, &words);
		struct box_op slow = op_without_turn(first), fast = op_without_turn(second);

		ok(!memcmp(&slow, &fast, sizeof(slow)), "of %zu elements", words.count);
		ok(track.ops[handle_slot(handle_bits(second))].index == 2 * class + 2,
		   "they count on");
	}
	words.sequence++;
	words.channels = 3;
	struct box_op other = op_without_turn(coll(comm, &words));

	ok(other.kind >> 24 == 3 && other.sequence == 41,
	   "channels and number are each operation's own");
	ok(enqueued(0) == 13, "all are counted");
}

static void test_what_is_different_is_seen(void)
{
	struct abi_coll words = like_the_load();

	begin();
	coll(comm, &words);
	coll(comm, &words);
	words.algo = "TREE";
	ok((op_without_turn(coll(comm, &words)).kind >> 8 & 0xff) == BOX_ALGO_TREE,
	   "another algorithm");
	words.proto = "LL";
	ok((op_without_turn(coll(comm, &words)).kind >> 16 & 0xff) == BOX_PROTO_LL,
	   "another protocol");
	words.datatype = "ncclInt8";
	ok(op_without_turn(coll(comm, &words)).bytes == 4096, "another type of element");
	words.channels = 0;
	ok(!coll(comm, &words) && box.comms[0].untimed == 1,
	   "no channels: no time, but on CollNet");
	words = like_the_load();
	coll(comm, &words);
	words.count = 0;
	ok(!coll(comm, &words) && box.comms[0].untimed == 2, "no elements: no time");
	words = like_the_load();
	words.func = NULL;
	ok((op_without_turn(coll(comm, &words)).kind & 0xff) == BOX_FUNC_UNKNOWN,
	   "no word: not known");
}

static uint64_t passed_s; /* since the box was new */

static void seconds_pass(unsigned seconds)
{
	for (; seconds; seconds--, gpu_ns += 1000000000)
		round_at(clock_ticks() + ++passed_s * ticks_a_second());
}

/* Its channels one after the other, as NCCL's thread may find them. */
static void run_channels(void *handle, unsigned channels)
{
	for (unsigned channel = 0; channel < channels; channel++)
		stop(kernel(handle, channel, 1000 + channel), 3000 + channel);
}

/* NCCL 2.27 to 2.30: src/enqueue.cc leaves the number 0 in the branch for CollNet, and for NVLS on
 * several nodes. */
static void test_channels_that_are_not_announced(const char *algo)
{
	struct abi_coll words = like_the_load();

	begin();
	passed_s = 0;
	words.algo = algo;
	words.channels = 0;
	run_channels(coll(comm, &words), 6);
	ok(!completed() && !box.comms[0].untimed, "%s: whether more channels come is not known",
	   algo);
	seconds_pass(4);
	ok(completed() == 1 && box.keys[0].busy_ns == 2005,
	   "%s: it is over when it was still for long", algo);
	void *second = coll(comm, &words);

	run_channels(second, 5);
	ok(completed() == 1, "%s: the next one waits for as many", algo);
	stop(kernel(second, 5, 1005), 3005);
	ok(completed() == 2 && box.keys[0].busy_ns == 4010, "%s: and is over with them", algo);
	words.count /= 4;
	run_channels(coll(comm, &words), 2);
	ok(completed() == 2, "%s: one of another size is waited for", algo);
	seconds_pass(4);
	run_channels(coll(comm, &words), 2);
	ok(completed() == 4, "%s: and known from then on", algo);
	for (unsigned i = 0; i < 3 * CHANNELS_PROBE; i++)
		run_channels(coll(comm, &words), 3);
	seconds_pass(4);
	uint64_t early = dropped(BOX_DROP_STALE);

	for (unsigned i = 0; i < CHANNELS_PROBE - 1; i++)
		run_channels(coll(comm, &words), 3);
	ok(early && early <= 3 * CHANNELS_PROBE && dropped(BOX_DROP_STALE) == early,
	   "%s: that it has more is seen by those that are waited for", algo);
	seconds_pass(4);
	ok(completed() == 4 + 4 * CHANNELS_PROBE - 1 && !box.comms[0].untimed && !box.comms[0].lost,
	   "%s: each is counted once, with a time", algo);
	for (unsigned i = 0; i < 20; i++, seconds_pass(4))
		run_channels(coll(comm, &words), 1);
	uint64_t before = completed();

	run_channels(coll(comm, &words), 1);
	run_channels(coll(comm, &words), 1);
	ok(completed() >= before + 1, "%s: that it has fewer for good is learned, too", algo);
}

static void test_nvls_inside_of_a_node(void)
{
	struct abi_coll words = like_the_load();

	begin();
	box.comms[0].nnodes = 1;
	words.algo = "NVLS";
	words.channels = 0;
	ok(!coll(comm, &words) && box.comms[0].untimed == 1,
	   "NVLS on one node announces its channels: none, no time");
}

/* NCCL 2.31 and later: what a graph replays runs by a kernel that tells nothing. */
static void test_captured_symmetric_ones(void)
{
	struct abi_coll words = like_the_load();
	void *handle = (void *)1;

	begin();
	for (unsigned i = 0; i < 3000; i++)
		track_symmetric_coll(&track, comm, handle_of(HANDLE_CAPTURED), &words, &handle);
	ok(!handle && box.comms[0].untimed == 3000 && enqueued(0) == 3000,
	   "a captured one is counted, without a time");
	track_symmetric_coll(&track, comm, NULL, &words, &handle);
	run_channels(handle, 8);
	ok(completed() == 1, "one that is not captured has its time");
}

/* NCCL runs several symmetric collectives of one call as one kernel, and gives its events to the
 * first. */
static void test_symmetric_ones_of_one_kernel(void)
{
	struct abi_coll words = like_the_load();
	void *first, *handle, *many[10];

	begin();
	for (unsigned i = 0; i < 10; i++) {
		track_plan_start(&track, comm);
		track_symmetric_coll(&track, comm, NULL, &words, &first);
		for (unsigned others = 0; others < 2; others++) {
			track_symmetric_coll(&track, comm, NULL, &words, &handle);
			ok(!handle, "what has no events of its own is not waited for");
		}
		run_channels(first, 8);
	}
	ok(!completed() && box.comms[0].untimed == 30 && enqueued(0) == 30,
	   "none of them has the time of all");
	ok(box.keys[0].untimed_bytes == 30 * words.count * 4, "their bytes are counted");
	for (unsigned i = 0; i < 10; i++) {
		track_plan_start(&track, comm);
		track_symmetric_coll(&track, comm, NULL, &words, &many[i]);
	}
	for (unsigned i = 0; i < 10; i++)
		run_channels(many[i], 8);
	ok(completed() == 10, "one a kernel has its time, however many are in flight");
}

static void test_one_communicator_leaves_room(void)
{
	struct abi_coll words = like_the_load();
	void *other;

	begin();
	other = comms_add(&track,
	                  &(struct comm_fields){ .id = 8, .name = "d", .nranks = 8, .nnodes = 2 });
	for (unsigned i = 0; i < 2 * BOX_OPS; i++)
		coll(comm, &words);
	ok(dropped(BOX_DROP_NO_SLOT) == 2 * BOX_OPS - BOX_OPS / 2,
	   "one whose operations never end has half of the slots");
	for (unsigned i = 0; i < 64; i++)
		run_channels(coll(other, &words), 8);
	ok(box.comms[1].completed == 64, "the others are measured beside it");
}

static void test_without_kernel_events(void)
{
	struct abi_coll words = like_the_load();

	begin();
	passed_s = 0;
	words.algo = "COLLNET_CHAIN";
	words.channels = 0;
	coll(comm, &words);
	words = like_the_load();
	for (unsigned i = 0; i < 100; i++)
		run_channels(coll(comm, &words), 8);
	seconds_pass(5);
	ok(box.comms[0].untimed == 1 && completed() == 100,
	   "one whose kernel tells nothing is counted without a time");
}

/* Far more a second than there are slots: none waits in vain for more channels. */
static void test_many_sizes(void)
{
	struct abi_coll words = like_the_load();

	begin();
	passed_s = 0;
	words.algo = "COLLNET_DIRECT";
	words.channels = 0;
	for (unsigned i = 0; i < 4 * BOX_OPS; i++) {
		words.count = 4096 + i;
		run_channels(coll(comm, &words), 4);
	}
	seconds_pass(5);
	ok(completed() == 4 * BOX_OPS && !dropped(BOX_DROP_NO_SLOT),
	   "each of another size: all are measured (%llu)", (unsigned long long)completed());
}

static void test_contexts_that_are_over(void)
{
	struct abi_coll words = like_the_load();

	begin();
	coll(comm, &words);
	coll(comm, &words);
	comms_remove(&track, comm);
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		comms_add(&track,
		          &(struct comm_fields){ .id = 100 + i, .name = "later", .nranks = 8 });
	ok(!coll(comm, &words) && dropped(BOX_DROP_STALE) == 1,
	   "that of a destroyed communicator is stale");
	ok(!coll(NULL, &words) && !coll((void *)0x123456789abc, &words),
	   "none, and one that is not ours, are nothing");
	begin();
	coll(comm, &words);
	track_silence(&track);
	ok(!coll(comm, &words), "in a forked child nothing is followed");
}

static void test_json_wants_the_time_of_the_call(void)
{
	static struct jsonring ring;
	struct abi_coll words = like_the_load();

	begin();
	void *last = NULL;

	for (unsigned i = 0; i <= TRACK_CALL_FIRST + 1; i++)
		last = coll(comm, &words);
	ok(!track.ops[handle_slot(handle_bits(last))].enqueue_tick, "most calls are not timed");
	track.json = &ring;
	last = coll(comm, &words);
	ok(track.ops[handle_slot(handle_bits(last))].enqueue_tick,
	   "with JSON lines the call has a time");
}

static unsigned slot_of(void *handle)
{
	return handle_slot(handle_bits(handle));
}

static void end(void *handle)
{
	for (unsigned c = 0; c < 8; c++)
		stop(kernel(handle, c, 1000), 2000);
}

#define TURNS 300u

static pthread_barrier_t turn;

/* Every second turn is this one's. */
static void *in_turns(void *own_slots)
{
	struct abi_coll words = like_the_load();

	for (unsigned i = 0; i < TURNS; i++) {
		pthread_barrier_wait(&turn);
		void *handle = coll(comm, &words);

		*(unsigned *)own_slots += slot_of(handle) < SLOTS_SHARED;
		end(handle);
		pthread_barrier_wait(&turn);
	}
	return NULL;
}

static void test_threads_in_turns(void)
{
	struct abi_coll words = like_the_load();
	unsigned here = 0, there = 0;
	pthread_t thread;

	begin();
	pthread_barrier_init(&turn, NULL, 2);
	pthread_create(&thread, NULL, in_turns, &there);
	for (unsigned i = 0; i < TURNS; i++) {
		void *handle = coll(comm, &words);

		here += slot_of(handle) < SLOTS_SHARED;
		end(handle);
		pthread_barrier_wait(&turn);
		pthread_barrier_wait(&turn);
	}
	pthread_join(thread, NULL);
	ok(here == TURNS && there == TURNS,
	   "two threads that call one communicator in turns each have slots of their own (%u and "
	   "%u)",
	   here, there);
	ok(box.comms[0].completed == 2 * TURNS, "and none of their operations is lost");
}

static pthread_barrier_t all_began;

static void *and_stay(void *slot)
{
	struct abi_coll words = like_the_load();

	*(unsigned *)slot = slot_of(coll(comm, &words));
	pthread_barrier_wait(&all_began);
	return NULL;
}

#define CROWD (TRACK_RINGS + 4u)

static void test_more_threads_than_rings(void)
{
	unsigned slots[CROWD], shared = 0, seen[TRACK_RINGS] = { 0 }, alone = 0;
	pthread_t threads[CROWD];

	begin();
	pthread_barrier_init(&all_began, NULL, CROWD);
	for (unsigned i = 0; i < CROWD; i++)
		pthread_create(&threads[i], NULL, and_stay, &slots[i]);
	for (unsigned i = 0; i < CROWD; i++)
		pthread_join(threads[i], NULL);
	for (unsigned i = 0; i < CROWD; i++) {
		shared += slots[i] >= SLOTS_SHARED;
		if (slots[i] < SLOTS_SHARED)
			seen[slots[i] / SLOTS_RING]++;
	}
	for (unsigned ring = 0; ring < TRACK_RINGS; ring++)
		alone += seen[ring] == 1;
	ok(alone == TRACK_RINGS && shared == CROWD - TRACK_RINGS,
	   "each ring has one thread, and who finds none takes of what is everybody's (%u, %u)",
	   alone, shared);
}

static void *one_slot(void *slot)
{
	struct abi_coll words = like_the_load();

	*(unsigned *)slot = slot_of(coll(comm, &words));
	return NULL;
}

/* An application that runs far ahead of its GPU. */
static void test_many_in_flight(void)
{
	struct abi_coll words = like_the_load();
	void *handles[SLOTS_SHARED];
	unsigned own = 0, slot = 0, again = 0;
	pthread_t other;

	begin();
	while (own < SLOTS_SHARED && slot_of(handles[own] = coll(comm, &words)) < SLOTS_SHARED)
		own++;
	ok(own >= SLOTS_SHARED / 2 && own < SLOTS_SHARED,
	   "it has most of the rings before any slot of everybody's (%u)", own);
	pthread_create(&other, NULL, one_slot, &slot);
	pthread_join(other, NULL);
	ok(slot < SLOTS_SHARED, "some are left to other threads");
	for (unsigned i = 0; i <= own; i++)
		run_channels(handles[i], 8);
	for (unsigned i = 0; i < own; i++)
		again += slot_of(handles[i] = coll(comm, &words)) < SLOTS_SHARED;
	ok(again > own / 10 * 9, "and has them again when they are over (%u)", again);
	while (coll(comm, &words))
		;
	ok(box.comms[0].enqueued == 0 && dropped(BOX_DROP_NO_SLOT) == 1,
	   "until all of its share is in flight");
	sweep_count(&track);
	ok(enqueued(0) - box.comms[0].completed == SLOTS_OF_COMM + 1, "and not one more");
}

static void test_one_that_hangs(void)
{
	struct abi_coll words = like_the_load();
	bool own = true;

	begin();
	void *hung = coll(comm, &words);

	for (unsigned i = 0; i < 10 * SLOTS_RING; i++) {
		void *handle = coll(comm, &words);

		own &= slot_of(handle) / SLOTS_RING == slot_of(hung) / SLOTS_RING && handle != hung;
		end(handle);
	}
	ok(own, "an operation that hangs is passed by, each time round");
}

static void test_time_of_our_own(void)
{
	struct abi_coll words = like_the_load();

	begin();
	/* Often: a counter that ticks every 16 ns has not moved in most of them. */
	for (unsigned i = 0; i < 64 * TRACK_HOT_SAMPLE; i++) {
		void *handle = coll(comm, &words);

		for (unsigned c = 0; c < 8; c++)
			stop(kernel(handle, c, 1000), 2000);
	}
	ok(track.hot_ticks > 0 && completed() == 64 * TRACK_HOT_SAMPLE,
	   "one in so many is measured, too");
}

int main(void)
{
	log2_init();
	test_both_ways_tell_the_same();
	test_what_is_different_is_seen();
	test_channels_that_are_not_announced("COLLNET_DIRECT");
	test_channels_that_are_not_announced("COLLNET_CHAIN");
	test_channels_that_are_not_announced("NVLS");
	test_nvls_inside_of_a_node();
	test_captured_symmetric_ones();
	test_symmetric_ones_of_one_kernel();
	test_one_communicator_leaves_room();
	test_without_kernel_events();
	test_many_sizes();
	test_contexts_that_are_over();
	test_json_wants_the_time_of_the_call();
	test_threads_in_turns();
	test_more_threads_than_rings();
	test_many_in_flight();
	test_one_that_hangs();
	test_time_of_our_own();
	ok(answered, "every handle was written, and nothing failed");
	return done_testing();
}
