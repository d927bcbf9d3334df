/* SPDX-License-Identifier: Apache-2.0 */
/* More kinds of operation than there are keys: those that come last share some, and nothing is
 * lost. */
#include <pthread.h>

#include "nccl/abi.h"
#include "hotbox.h"

#define COMMS 33u
#define SIZES 20u
#define TURNS 50u

static void *comms[COMMS];

static void begin_with_communicators(void)
{
	begin();
	for (unsigned i = 0; i < COMMS; i++)
		comms[i] = i ? comms_add(&track,
		                         &(struct comm_fields){
					     .id = 70 + i, .name = "d", .nranks = 8, .rank = 3 })
		             : comm;
}

struct sums {
	uint64_t ops, bytes, busy_ns, untimed_ops, untimed_bytes, in_buckets;
};

static struct sums sums_of(bool (*wanted)(const struct box_key *))
{
	struct sums sums = { 0 };

	for (unsigned i = 0; i < BOX_KEYS; i++) {
		if (box.keys[i].used != 1 || !wanted(&box.keys[i]))
			continue;
		sums.ops += box.keys[i].ops;
		sums.bytes += box.keys[i].bytes;
		sums.busy_ns += box.keys[i].busy_ns;
		sums.untimed_ops += box.keys[i].untimed_ops;
		sums.untimed_bytes += box.keys[i].untimed_bytes;
		for (unsigned bucket = 0; bucket < HIST_BUCKETS; bucket++)
			sums.in_buckets += box.hists[i].count[bucket];
	}
	return sums;
}

static bool any(const struct box_key *key)
{
	(void)key;
	return true;
}

static bool is_shared(const struct box_key *key)
{
	return key->comm == BOX_COMM_MORE;
}

/* An operation of each size on one communicator. */
static void play(void *context)
{
	for (unsigned size = 0; size < SIZES; size++)
		stop(kernel(start(context, 1, 4ull << size), 0, 1000), 1000 + 100 * (size + 1));
}

static uint64_t bytes_of_a_play(void)
{
	uint64_t sum = 0;

	for (unsigned size = 0; size < SIZES; size++)
		sum += 16ull << size; /* of four bytes each */
	return sum;
}

static void test_mixed_sizes_on_many_communicators(void)
{
	begin_with_communicators();
	for (unsigned turn = 0; turn < TURNS; turn++)
		for (unsigned i = 0; i < COMMS; i++)
			play(comms[i]);
	struct sums all = sums_of(any), shared = sums_of(is_shared);

	ok(all.ops == TURNS * COMMS * SIZES && !dropped(BOX_DROP_NO_KEY),
	   "each operation has a key (%llu)", (unsigned long long)all.ops);
	ok(all.bytes == TURNS * COMMS * bytes_of_a_play() && all.in_buckets == all.ops,
	   "no byte and no time is lost");
	ok(all.busy_ns == TURNS * COMMS * 100ull * SIZES * (SIZES + 1) / 2,
	   "and times are added up");
	ok(shared.ops && shared.ops < all.ops,
	   "who came first has keys of its own (%llu of %llu shared)",
	   (unsigned long long)shared.ops, (unsigned long long)all.ops);
	ok(box.comms[BOX_COMM_MORE].state == BOX_COMM_FOLDED &&
	       !strcmp(box.comms[BOX_COMM_MORE].name, "(more kinds)"),
	   "the record of those that are shared says what it is");
	bool right = true;

	for (unsigned i = 0; i < BOX_KEYS; i++)
		if (box.keys[i].used == 1 && is_shared(&box.keys[i]) && box.keys[i].ops)
			right =
			    right && box.keys[i].min_ns == box.keys[i].max_ns &&
			    box.keys[i].busy_ns == box.keys[i].ops * box.keys[i].min_ns &&
			    box.keys[i].bytes == box.keys[i].ops * (1ull << box.keys[i].size_class);
	ok(right, "a shared key is of one function and size class");
}

static void *play_on(void *context)
{
	for (unsigned turn = 0; turn < 20 * TURNS; turn++)
		play(context);
	return NULL;
}

static void test_threads_that_share_a_key(void)
{
	pthread_t threads[4];

	begin_with_communicators();
	for (unsigned i = 0; i < 12; i++) /* all keys are taken but the last */
		play(comms[i]);
	struct sums before = sums_of(any);

	for (unsigned i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, play_on, comms[20 + i]);
	for (unsigned i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	struct sums after = sums_of(any);
	uint64_t plays = 4 * 20 * TURNS;

	ok(after.ops - before.ops == plays * SIZES && after.in_buckets == after.ops,
	   "four threads lose none (%llu of %llu)", (unsigned long long)(after.ops - before.ops),
	   (unsigned long long)plays * SIZES);
	ok(after.bytes - before.bytes == plays * bytes_of_a_play() &&
	       after.busy_ns - before.busy_ns == plays * 100 * SIZES * (SIZES + 1) / 2,
	   "nor a byte, nor a nanosecond");
}

static void call(void *context, const char *func, uint64_t count)
{
	track_coll_call(
	    &track, context,
	    &(struct event){
		.peer = EVENT_NO_PEER, .func = func, .datatype = "ncclInt8", .count = count });
}

static void test_calls_without_operations(void)
{
	begin_with_communicators();
	for (unsigned i = 0; i < 12; i++)
		play(comms[i]);
	for (unsigned i = 20; i < 24; i++) {
		call(comms[i], "Broadcast", 1 << 20); /* NCCL 2.29 and later gives no event of it */
		call(comms[i], "AllReduce",
		     8); /* of these it does, in other communicators as well */
	}
	for (unsigned round = 1; round <= 3; round++)
		sweep_round(&sweep, &track, clock_ticks() + round * ticks_a_second());
	struct sums shared = sums_of(is_shared);

	ok(shared.untimed_ops == 4 && shared.untimed_bytes == 4 << 20,
	   "calls of which NCCL gives no operation are counted in shared keys, too (%llu)",
	   (unsigned long long)shared.untimed_ops);
}

int main(void)
{
	log2_init();
	test_mixed_sizes_on_many_communicators();
	test_threads_that_share_a_key();
	test_calls_without_operations();
	return done_testing();
}
