/* SPDX-License-Identifier: Apache-2.0 */
/* Operations on their way to the samples: in order, each once, the newest dropped when there is no
 * room. */
#include <pthread.h>
#include <sched.h>

#include "hot/ends.h"
#include "tap.h"

#define PRODUCERS 4u
#define EACH 200000u
#define ROOM (ENDS_CHUNKS * ENDS_CHUNK)

static struct box box;
static struct ends ends;
static _Atomic unsigned producing;

static void begin(void)
{
	int error;

	box_open(&box, -1, "0", &error);
	ends_init(&ends);
}

static bool push(unsigned comm, uint64_t number)
{
	uint32_t place = ends_place(&ends, &box, comm);

	if (place == ENDS_FULL)
		return false;
	atomic_store_explicit(&ends.ends[place].start_ns, number, memory_order_relaxed);
	ends.ends[place].stop_ns = number + comm;
	ends.ends[place].index = (uint32_t)number;
	ends_hand_over(&box, comm, place);
	return true;
}

/* The next one of a communicator, 0: there is none. */
static uint64_t pull(unsigned comm)
{
	const struct box_sample *end =
	    ends_peek(&ends, comm, atomic_load(&box.comms[comm].end_place));
	uint64_t number = end ? end->start_ns : 0;

	if (end && (end->stop_ns != number + comm || end->index != (uint32_t)number))
		number = UINT64_MAX;
	if (end)
		ends_release(&ends, comm);
	return number;
}

static unsigned chunks_free(void)
{
	unsigned count = 0;

	for (unsigned i = 0; i < ENDS_CHUNKS / 64; i++)
		count += (unsigned)__builtin_popcountll(ends.free[i]);
	return count;
}

static void test_order(void)
{
	bool in_order = true;

	begin();
	ok(!pull(0) && chunks_free() == ENDS_CHUNKS,
	   "at first there is nothing, and no chunk is taken");
	for (uint64_t i = 1; i <= 10 * ROOM; i++) {
		in_order = in_order && push(0, i) && (i % 7 || push(1, i));
		if (i % 50 == 0) {
			for (uint64_t j = i - 49; j <= i; j++)
				in_order = in_order && pull(0) == j;
			in_order = in_order && !pull(0);
			while (pull(1))
				;
		}
	}
	ok(in_order, "what is read comes in the order in which it was written, ten times around");
	ok(chunks_free() >= ENDS_CHUNKS - 4, "and what was read is free again (%u chunks)",
	   chunks_free());
	ok(!ends.lost[0] && !ends.lost[1], "nothing was dropped");
}

static void test_peek_twice(void)
{
	begin();
	for (uint64_t i = 1; i <= ENDS_CHUNK + 1; i++)
		push(3, i);
	for (uint64_t i = 1; i <= ENDS_CHUNK; i++)
		pull(3);
	uint32_t until = box.comms[3].end_place;
	const struct box_sample *end = ends_peek(&ends, 3, until);

	ok(end && end->start_ns == ENDS_CHUNK + 1 && ends_peek(&ends, 3, until) == end,
	   "a look changes nothing, also where a chunk begins");
	pull(3);
	push(3, 99);
	ok(!ends_peek(&ends, 3, until), "what came after the look's end is not seen");
	ok(pull(3) == 99, "but by the next");
}

static void test_full(void)
{
	uint64_t pushed = 0;
	bool in_order = true;

	begin();
	push(5, 1);
	while (push(0, pushed + 1) && pushed < 2 * ROOM)
		pushed++;
	ok(pushed == ROOM - ENDS_CHUNK, "one may take all chunks but those of others (%llu)",
	   (unsigned long long)pushed);
	ok(!push(0, 7777) && ends.lost[0] == 2 && !ends.lost[5],
	   "then the newest is dropped and counted");
	ok(push(5, 2), "others still have the rest of their chunk");
	for (uint64_t i = 1; i <= ENDS_CHUNK + 1; i++)
		in_order = in_order && pull(0) == i;
	ok(in_order, "the oldest are all there");
	ok(push(0, pushed + 1), "what is read makes room");
	uint64_t last = 0;

	for (uint64_t next; (next = pull(0));)
		last = next;
	ok(last == pushed + 1, "and nothing that was dropped comes back");
}

static void *produce(void *argument)
{
	unsigned comm = *(unsigned *)argument;

	for (uint64_t i = 1; i <= EACH; i++)
		if (!push(comm, i))
			sched_yield();
	atomic_fetch_sub(&producing, 1);
	return NULL;
}

static void test_threads(void)
{
	pthread_t threads[PRODUCERS];
	unsigned comms[PRODUCERS];
	uint64_t taken[PRODUCERS] = { 0 }, last[PRODUCERS] = { 0 };
	bool in_order = true, more = true;

	begin();
	atomic_store(&producing, PRODUCERS);
	for (unsigned i = 0; i < PRODUCERS; i++) {
		comms[i] = 10 * i;
		pthread_create(&threads[i], NULL, produce, &comms[i]);
	}
	while (more) {
		more = atomic_load(&producing);
		for (unsigned i = 0; i < PRODUCERS; i++) {
			for (uint64_t next; (next = pull(comms[i])); last[i] = next) {
				in_order = in_order && next > last[i] && next <= EACH;
				taken[i]++;
			}
		}
	}
	for (unsigned i = 0; i < PRODUCERS; i++)
		pthread_join(threads[i], NULL);
	ok(in_order, "between threads each comes once, whole and in order");
	for (unsigned i = 0; i < PRODUCERS; i++)
		ok(taken[i] + ends.lost[comms[i]] == EACH && taken[i],
		   "of communicator %u all are there or counted (%llu dropped)", comms[i],
		   (unsigned long long)ends.lost[comms[i]]);
}

int main(void)
{
	test_order();
	test_peek_twice();
	test_full();
	test_threads();
	return done_testing();
}
