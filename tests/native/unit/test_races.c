/* SPDX-License-Identifier: Apache-2.0 */
/* Application threads, kernel threads, the writer's rounds and communicators that come and go, all
 * at once: the sums must be exact, and TSan must find nothing. */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log2.h"
#include "hot/follow.h"
#include "hot/kernels.h"
#include "hot/start.h"
#include "prom/text_of_gpu.h"
#include "prom/window.h"
#include "upkeep/comms.h"
#include "upkeep/samples.h"
#include "upkeep/sweep.h"
#include "upkeep/timeline.h"
#include "tap.h"

#define PAIRS 4
#define OPERATIONS 20000u
#define CHANNELS 4u
#define QUEUE 256u

static struct box box;
static struct track track;
static struct config config;
static struct sweep sweep;
static struct samples samples;
static pthread_mutex_t tables = PTHREAD_MUTEX_INITIALIZER;
static _Atomic bool over;

/* What NCCL hands from the application's thread to the one that reports kernels. */
struct pair {
	void *comm;
	_Atomic(void *) queue[QUEUE];
	_Atomic unsigned head, tail;
};

static struct pair pairs[PAIRS];

static void *application(void *argument)
{
	struct pair *pair = argument;

	for (unsigned i = 0; i < OPERATIONS; i++) {
		void *op = track_operation(&track, pair->comm,
		                           &(struct event){ .peer = EVENT_NO_PEER,
		                                            .func = "AllReduce",
		                                            .datatype = "ncclInt8",
		                                            .algo = i % 3 ? "RING" : "TREE",
		                                            .proto = "LL",
		                                            .count = 1ull << (i % 20),
		                                            .channels = CHANNELS });

		while (atomic_load(&pair->head) - atomic_load(&pair->tail) == QUEUE)
			sched_yield();
		unsigned head = atomic_load(&pair->head);

		atomic_store(&pair->queue[head % QUEUE], op);
		atomic_store(&pair->head, head + 1);
	}
	return NULL;
}

static void *kernels(void *argument)
{
	struct pair *pair = argument;

	for (unsigned i = 0; i < OPERATIONS; i++) {
		void *channels[CHANNELS];

		while (atomic_load(&pair->head) == i)
			sched_yield();
		void *op = atomic_load(&pair->queue[i % QUEUE]);

		atomic_store(&pair->tail, i + 1);
		uint64_t now = track_now_ns(&track);

		for (unsigned c = 0; c < CHANNELS; c++)
			channels[c] = track_kernel_start(&track, op, c + 8, now + c);
		for (unsigned c = 0; c < CHANNELS; c++)
			track_kernel_stop(&track, channels[CHANNELS - 1 - c], now + 2000 + c);
	}
	return NULL;
}

static void *rounds(void *argument)
{
	static struct timeline lines;
	static struct prom expo;
	static struct textbuf text;

	(void)argument;
	expo.box = &box;
	expo.config = &config;
	while (!atomic_load(&over)) {
		pthread_mutex_lock(&tables);
		sweep_round(&sweep, &track, clock_ticks());
		timeline_round(&lines, &box, clock_ns(CLOCK_REALTIME));
		samples_round(&samples);
		prom_window(&expo, clock_ticks(), track.ns_per_tick_q32);
		prom_text_of_gpu(&expo, 0, &text);
		pthread_mutex_unlock(&tables);
	}
	return NULL;
}

static void *churn(void *argument)
{
	(void)argument;
	for (unsigned i = 0; !atomic_load(&over); i++) {
		pthread_mutex_lock(&tables);
		void *comm = comms_add(
		    &track, &(struct comm_fields){ .id = 1, .nranks = 2, .name = "short" });
		pthread_mutex_unlock(&tables);
		if (i % 256 == 0) /* their operations wait for the sweep, and the pool is for all */
			track_operation(
			    &track, comm,
			    &(struct event){ .peer = EVENT_NO_PEER, .count = 77, .channels = 1 });
		pthread_mutex_lock(&tables);
		comms_remove(&track, comm);
		pthread_mutex_unlock(&tables);
	}
	return NULL;
}

/* Kinds that nobody had, of communicators that go again, while others give up theirs. They have no
 * time. */
static void *kinds(void *argument)
{
	(void)argument;
	for (unsigned i = 0; !atomic_load(&over); i++) {
		pthread_mutex_lock(&tables);
		void *comm = comms_add(
		    &track, &(struct comm_fields){ .id = 2, .nranks = 2, .name = "kinds" });
		pthread_mutex_unlock(&tables);
		for (unsigned size = 0; size < 6; size++)
			track_operation(&track, comm,
			                &(struct event){ .peer = EVENT_NO_PEER,
			                                 .func = i % 2 ? "Reduce" : "AllGather",
			                                 .count = 1ull << size });
		pthread_mutex_lock(&tables);
		comms_remove(&track, comm);
		pthread_mutex_unlock(&tables);
	}
	return NULL;
}

static const char *no_environment(const char *name)
{
	(void)name;
	return NULL;
}

int main(void)
{
	pthread_t threads[2 * PAIRS + 3];
	uint64_t ops = 0, busy = 0, in_buckets = 0;
	int error;

	log2_init();
	config_load(&config, no_environment);
	box_open(&box, -1, "0", &error);
	track_init(&track, &box, clock_calibrate(),
	           &(struct track_options){ .timing = BOX_TIMING_GPU });
	samples_init(&samples, &track);
	for (unsigned i = 0; i < PAIRS; i++)
		pairs[i].comm = comms_add(
		    &track, &(struct comm_fields){ .id = 10 + i, .nranks = 8, .name = "pair" });
	for (unsigned i = 0; i < PAIRS; i++) {
		pthread_create(&threads[2 * i], NULL, application, &pairs[i]);
		pthread_create(&threads[2 * i + 1], NULL, kernels, &pairs[i]);
	}
	pthread_create(&threads[2 * PAIRS], NULL, rounds, NULL);
	pthread_create(&threads[2 * PAIRS + 1], NULL, churn, NULL);
	pthread_create(&threads[2 * PAIRS + 2], NULL, kinds, NULL);
	for (unsigned i = 0; i < 2 * PAIRS; i++)
		pthread_join(threads[i], NULL);
	atomic_store(&over, true);
	pthread_join(threads[2 * PAIRS], NULL);
	pthread_join(threads[2 * PAIRS + 1], NULL);
	pthread_join(threads[2 * PAIRS + 2], NULL);
	sweep_round(&sweep, &track, clock_ticks()); /* counts, and what met a busy communicator */

	samples_round(&samples);

	const struct box_header *header = box.header;
	bool begun_is_ops = true;

	for (unsigned i = 0; i < BOX_KEYS; i++) {
		ops += box.keys[i].ops;
		busy += box.keys[i].busy_ns;
		begun_is_ops &= box.keys[i].begun == box.keys[i].ops;
		for (unsigned b = 0; b < HIST_BUCKETS; b++)
			in_buckets += box.hists[i].count[b];
	}
	for (unsigned reason = 0; reason < BOX_DROPS; reason++)
		if (box.header->dropped[reason])
			printf("# dropped for reason %u: %llu\n", reason,
			       (unsigned long long)box.header->dropped[reason]);
	ok(ops == PAIRS * OPERATIONS, "no operation is lost or counted twice (%llu)",
	   (unsigned long long)ops);
	ok(in_buckets == ops && begun_is_ops, "each is in a histogram");
	ok(box.unions[0].operations + header->samples_lost == ops && !header->samples_unkinded,
	   "each went on to the samples, or is counted as lost on the way (%llu)",
	   (unsigned long long)header->samples_lost);
	ok(busy == ops * (2000 + CHANNELS - 1), "the sum of their times is exact");
	for (unsigned i = 0; i < PAIRS; i++)
		ok(box.comms[i].enqueued == OPERATIONS && box.comms[i].started == OPERATIONS &&
		       box.comms[i].completed == OPERATIONS &&
		       box.comms[i].last_sequence == OPERATIONS,
		   "communicator %u has all of its own", i);
	return done_testing();
}
