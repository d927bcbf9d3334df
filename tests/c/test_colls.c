/* SPDX-License-Identifier: Apache-2.0 */
/* The quick way of a collective against the way of any operation: what the box has of them is the same. */
#include <pthread.h>

#include "abi.h"
#include "trackbox.h"

static struct abi_coll like_the_load(void)
{
	return (struct abi_coll){ .sequence = 40, .func = "AllReduce", .count = 4096, .datatype = "ncclFloat32",
				  .channels = 8, .algo = "RING", .proto = "SIMPLE" };
}

static bool answered = true;

static void *coll(void *context, const struct abi_coll *words)
{
	void *handle = (void *)1;

	answered &= !track_coll(&track, context, words, &handle) && handle != (void *)1;
	return handle;
}

/* The slot of a handle, without what differs from one operation to the next. */
static struct box_op op_without_turn(void *handle)
{
	struct box_op op = track.ops[handle_slot(handle_word(handle))];

	ok(handle_of_use(handle_slot(handle_word(handle)), op.generation) == handle_word(handle) &&
		   op.handle == handle_word(handle),
	   "its handle is that of its slot's present use");
	op.generation = 0;
	op.index = op.handle = 0;
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
		ok(track.ops[handle_slot(handle_word(second))].index == 2 * class + 2, "they count on");
	}
	words.sequence++;
	words.channels = 3;
	struct box_op other = op_without_turn(coll(comm, &words));

	ok(other.kind >> 24 == 3 && other.sequence == 41, "channels and number are each operation's own");
	ok(enqueued(0) == 13, "all are counted");
}

static void test_what_is_different_is_seen(void)
{
	struct abi_coll words = like_the_load();

	begin();
	coll(comm, &words);
	coll(comm, &words);
	words.algo = "TREE";
	ok((op_without_turn(coll(comm, &words)).kind >> 8 & 0xff) == BOX_ALGO_TREE, "another algorithm");
	words.proto = "LL";
	ok((op_without_turn(coll(comm, &words)).kind >> 16 & 0xff) == BOX_PROTO_LL, "another protocol");
	words.datatype = "ncclInt8";
	ok(op_without_turn(coll(comm, &words)).bytes == 4096, "another type of element");
	words.channels = 0;
	ok(!coll(comm, &words) && box.comms[0].untimed == 1, "no channels: no time");
	words = like_the_load();
	coll(comm, &words);
	words.count = 0;
	ok(!coll(comm, &words) && box.comms[0].untimed == 2, "no elements: no time");
	words = like_the_load();
	words.func = NULL;
	ok((op_without_turn(coll(comm, &words)).kind & 0xff) == BOX_FUNC_UNKNOWN, "no word: not known");
}

static void test_contexts_that_are_over(void)
{
	struct abi_coll words = like_the_load();

	begin();
	coll(comm, &words);
	coll(comm, &words);
	comms_remove(&track, comm);
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		comms_add(&track, &(struct comm_words){ .id = 100 + i, .name = "later", .nranks = 8 });
	ok(!coll(comm, &words) && dropped(BOX_DROP_STALE) == 1, "that of a destroyed communicator is stale");
	ok(!coll(NULL, &words) && !coll((void *)0x123456789abc, &words), "none, and one that is not ours, are nothing");
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
	coll(comm, &words);
	track.json = &ring;
	ok(op_without_turn(coll(comm, &words)).enqueue_tick, "with JSON lines the call has a time");
}

static void *in_another_thread(void *words)
{
	return coll(comm, words);
}

static void test_another_thread(void)
{
	struct abi_coll words = like_the_load();
	pthread_t thread;
	void *handle;

	begin();
	coll(comm, &words);
	pthread_create(&thread, NULL, in_another_thread, &words);
	pthread_join(thread, &handle);
	ok(handle_slot(handle_word(handle)) >= SLOTS_SHARED, "a second thread takes of what is everybody's");
}

static void test_more_than_are_near(void)
{
	struct abi_coll words = like_the_load();
	bool own = true;

	begin();
	for (unsigned i = 0; i < SLOTS_OWN; i++)
		own &= handle_slot(handle_word(coll(comm, &words))) < SLOTS_SHARED;
	ok(own && handle_slot(handle_word(coll(comm, &words))) >= SLOTS_SHARED,
	   "all of its own are taken before any of everybody's");
	ok(!box.ops[SLOTS_NEAR].generation, "and none of another communicator's");
}

static void test_time_of_our_own(void)
{
	struct abi_coll words = like_the_load();

	begin();
	for (unsigned i = 0; i < 2 * TRACK_HOT_SAMPLE; i++) {
		void *handle = coll(comm, &words);

		for (unsigned c = 0; c < 8; c++)
			stop(kernel(handle, c, 1000), 2000);
	}
	ok(track.hot_ticks > 0 && completed() == 2 * TRACK_HOT_SAMPLE, "one in so many is measured, too");
}

int main(void)
{
	log2_init();
	test_both_ways_tell_the_same();
	test_what_is_different_is_seen();
	test_contexts_that_are_over();
	test_json_wants_the_time_of_the_call();
	test_another_thread();
	test_more_than_are_near();
	test_time_of_our_own();
	ok(answered, "every handle was written, and nothing failed");
	return done_testing();
}
