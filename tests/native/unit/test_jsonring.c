/* SPDX-License-Identifier: Apache-2.0 */
/* Records from many threads to one: none torn, none twice, and what is missing is counted. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "json/comms.h"
#include "hot/jsonring.h"
#include "tap.h"

#define PRODUCERS 4u
#define EACH 100000u

static struct jsonring ring;
static _Atomic unsigned finished;
static _Atomic uint64_t dropped;
static _Atomic uint64_t accepted;

/* A record of which every word follows from two. */
static struct json_record record_of(uint64_t producer, uint64_t n)
{
	return (struct json_record){
		.enqueue_tick = n,
		.end_tick = n * 3,
		.gpu_start_ns = n * 5 + producer,
		.time_ns = n * 7,
		.bytes = 8192 + n,
		.sequence = n * 11,
		.kind = (uint32_t)(n * 13),
		.peer = (int32_t)producer - 1,
		.comm = (uint16_t)producer,
		.flags = n & 1,
		.comm_generation = (uint32_t)(n ^ producer << 20),
	};
}

static void *produce(void *argument)
{
	uint64_t producer = (uintptr_t)argument, pushed = 0;
	struct trace_op trace = { .generation = 1 };

	for (uint64_t n = 0; n < EACH; n++) {
		struct json_record record = record_of(producer, n);

		trace.start_tick = n;
		trace.started = trace.stopped = 1;
		trace.channel[0].stop_tick = n * 17 + producer;
		pushed += jsonring_push(&ring, &record, &trace);
		if (n % 512 == 0)
			sched_yield();
	}
	atomic_fetch_add(&accepted, pushed);
	atomic_fetch_add(&finished, 1);
	return NULL;
}

static bool is_whole(const struct json_record *record, const struct trace_op *trace)
{
	struct json_record want = record_of(record->comm, record->enqueue_tick);

	return record->comm < PRODUCERS && !memcmp(record, &want, sizeof(want)) &&
	       (!trace ||
	        (trace->start_tick == record->enqueue_tick &&
	         trace->channel[0].stop_tick == record->enqueue_tick * 17 + record->comm));
}

static void test_threads(bool traced)
{
	pthread_t threads[PRODUCERS];
	uint64_t next[PRODUCERS] = { 0 }, taken = 0, torn = 0, disorder = 0;
	struct json_record record;
	bool last;

	atomic_store(&finished, 0);
	atomic_store(&accepted, 0);
	atomic_store(&dropped, 0);
	if (!ok(jsonring_open(&ring, 7, 0, traced, &dropped) == 0, "a ring"))
		return;
	for (uintptr_t i = 0; i < PRODUCERS; i++)
		pthread_create(&threads[i], NULL, produce, (void *)i);
	do {
		last = atomic_load(&finished) == PRODUCERS;
		while (jsonring_peek(&ring, &record)) {
			taken++;
			torn += !is_whole(&record, jsonring_trace(&ring));
			disorder += record.enqueue_tick < next[record.comm % PRODUCERS];
			next[record.comm % PRODUCERS] = record.enqueue_tick + 1;
			jsonring_release(&ring);
		}
	} while (!last);
	for (unsigned i = 0; i < PRODUCERS; i++)
		pthread_join(threads[i], NULL);
	ok(!torn && !disorder, "every record is whole and in the order of its thread (%llu, %llu)",
	   (unsigned long long)torn, (unsigned long long)disorder);
	ok(taken == atomic_load(&accepted) && taken + atomic_load(&dropped) == PRODUCERS * EACH,
	   "taken %llu, dropped %llu", (unsigned long long)taken,
	   (unsigned long long)atomic_load(&dropped));
	jsonring_free(&ring);
}

static void test_full(void)
{
	struct json_record record;

	ok(jsonring_open(&ring, 4, 8192, false, &dropped) == 0 && !jsonring_peek(&ring, &record),
	   "a new ring is empty");
	for (uint64_t lap = 0; lap < 300; lap++) { /* further than eight bits of laps */
		unsigned pushed = 0, right = 0;

		for (uint64_t n = 0; n < 20; n++) {
			struct json_record one = record_of(lap % 4, n);

			pushed += jsonring_push(&ring, &one, NULL);
		}
		for (uint64_t n = 0; jsonring_peek(&ring, &record); n++) {
			right += record.enqueue_tick == n && record.comm == lap % 4;
			jsonring_release(&ring);
		}
		if (pushed != 16 || right != 16)
			return (void)ok(false, "lap %llu: %u pushed, %u right",
			                (unsigned long long)lap, pushed, right);
	}
	ok(atomic_load(&dropped) == 300 * 4, "a full ring drops the newest, and counts them");
	record = record_of(0, 0);
	record.bytes = 8191;
	ok(!jsonring_push(&ring, &record, NULL) && atomic_load(&dropped) == 300 * 4,
	   "what is too small for a line is not dropped but left out");
	jsonring_free(&ring);
}

static struct json_comm *comm_of(unsigned comm, uint32_t generation)
{
	static const struct json_process process = {
		.hostname = "", .node = "", .cluster = "", .version = ""
	};

	return json_comm_new(
	    &process,
	    &(struct json_comm_fields){ .comm = comm, .generation = generation, .gpu_uuid = "" });
}

static void test_communicators(void)
{
	static struct jsoncomms comms;

	for (uint32_t generation = 1; generation < 20; generation += 2)
		for (unsigned comm = 0; comm < 3; comm++)
			jsoncomms_add(&comms, comm_of(comm, generation));
	jsoncomms_add(&comms, NULL);
	jsoncomms_add(&comms, comm_of(BOX_COMMS, 1));
	const struct json_comm *found = jsoncomms_find(&comms, 1, 1);

	ok(found && found->comm == 1 && found->generation == 1,
	   "one that was replaced since is still known");
	ok(!jsoncomms_find(&comms, 1, 2) && !jsoncomms_find(&comms, 4, 1) &&
	       !jsoncomms_find(&comms, 65535, 1),
	   "others are not");
	jsoncomms_trim(&comms);
	ok(!jsoncomms_find(&comms, 1, 15) && jsoncomms_find(&comms, 1, 17) &&
	       jsoncomms_find(&comms, 1, 19),
	   "when no operation waits the latest two are kept");
	for (uint32_t i = 0; i < 5000; i++)
		jsoncomms_add(&comms, comm_of(5, i));
	ok(jsoncomms_find(&comms, 5, 0) && jsoncomms_find(&comms, 5, 4095) &&
	       !jsoncomms_find(&comms, 5, 4096),
	   "a thread that is stuck lets no more than 4096 wait");
	jsoncomms_trim(&comms);
	for (unsigned i = 0; i < BOX_COMMS; i++)
		while (comms.known[i]) {
			struct json_comm *first = comms.known[i];

			comms.known[i] = first->next;
			free(first);
		}
}

int main(void)
{
	test_full();
	test_threads(false);
	test_threads(true);
	test_communicators();
	return done_testing();
}
