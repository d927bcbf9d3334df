/* SPDX-License-Identifier: Apache-2.0 */
/* Any interleaving of what NCCL may do, from random numbers: application threads, threads that
 * report kernels, the writer's rounds and communicators that come and go, through the tables of v3,
 * v4 and v7. Each side keeps its own log, and in the end the box must say what the logs say.
 *
 * CONSERVES_SEED=N plays N again, as far as threads do.
 */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log2.h"
#include "hot/follow.h"
#include "upkeep/comms.h"
#include "upkeep/sweep.h"
#include "kernels.h"
#include "laws.h"
#include "tap.h"

#define PAIRS 3u
#define GROUPS_OF_COMM 8u
#define GROUPS_OF_CROWD 90u /* of a few communicators: more operations than there are slots */
#define RANK 3

static struct box box;
static struct sweep sweep;
static pthread_mutex_t tables = PTHREAD_MUTEX_INITIALIZER;
static struct pair pairs[PAIRS];
static bool is_crowded; /* the kernels are told when the queue is full, which is when the pool is */
static _Atomic bool over;

/* --- the application's side --- */

static void push(struct pair *pair, const struct driver_op *op)
{
	unsigned head = atomic_load(&pair->head);

	while (head - atomic_load(&pair->tail) == QUEUE) {
		atomic_store(&pair->paused, false);
		sched_yield();
	}
	pair->queue[head % QUEUE] = *op;
	atomic_store(&pair->head, head + 1);
}

static enum fate choose_fate(uint64_t *random, bool may_be_fewer, const struct calls_words *words)
{
	uint64_t chance = draw(random, 60);

	if (chance < 2)
		return chance ? HALF : NEVER;
	return may_be_fewer && words->channels > 1 && chance < 8 ? FEWER : WHOLE;
}

static void one_operation(struct pair *pair, void *group, bool stays)
{
	static const char *const funcs[] = { "AllReduce", "AllGather", "ReduceScatter", "Send",
	                                     "Recv" };
	uint64_t *random = &pair->random[0], what = draw(random, stays || api > 3 ? 5 : 3);
	struct calls_words words = {
		.func = funcs[what],
		.datatype = "ncclFloat32",
		.algo = "RING", /* few kinds: their table must not be full */
		.proto = "LL",
		.count = draw(random, 50) ? 16ull << draw(random, 3) : 0,
		.peer = (int)draw(random, 8),
		.channels = (uint8_t)(1 + draw(random, 6)),
		.rank = RANK,
	};
	bool is_p2p = what >= 3;
	void *parent = api < 5 ? group
	                       : calls_start(api, pair->comm, is_p2p ? ABI_P2P_API : ABI_COLL_API,
	                                     group, &words);

	words.symmetric = api == 7 && !is_p2p && !draw(random, 20);
	if (words.symmetric && draw(random, 2))
		words.channels = 0; /* as NCCL 2.30 tells of them */
	/* Each has a kernel of its own. */
	void *plan = words.symmetric ? calls_start(api, pair->comm, ABI_GROUP, NULL, &words) : NULL;
	void *handle = calls_start(api, pair->comm, is_p2p ? ABI_P2P : ABI_COLL, parent, &words);
	struct driver_op op = { .handle = handle,
	                        .bytes = 4 * words.count,
	                        .took_ns = 1000 + draw(random, 100000),
	                        .channels = words.channels,
	                        .fate =
	                            choose_fate(random, stays && (is_p2p || api == 3), &words) };

	calls_stop(api, handle);
	if (plan)
		calls_stop(api, plan);
	pair->now.ops++;
	pair->now.bytes += op.bytes;
	if (!op.bytes || !op.channels || (is_p2p && words.peer == RANK)) {
		pair->now.untimed_ops++;
		pair->now.untimed_bytes += op.bytes;
		pair->wrong |= handle != NULL;
	} else if (!handle) {
		pair->now.no_handle++;
	} else {
		push(pair, &op);
	}
}

static void one_group(struct pair *pair, bool crowds, bool stays)
{
	uint64_t *random = &pair->random[0];
	struct calls_words words = { .func = "AllReduce", .datatype = "ncclInt8", .count = 77 };
	void *group =
	    calls_start(api, pair->comm, api < 5 ? ABI_GROUP : ABI_GROUP_API, NULL, &words);

	for (uint64_t i = 1 + draw(random, crowds ? 60 : 4); i; i--)
		one_operation(pair, group, stays);
	if (api == 7 && !draw(random, 10)) {
		calls_start(api, pair->comm, ABI_CE_COLL, NULL, &words);
		pair->now.ops++;
		pair->now.bytes += 77;
		pair->now.untimed_ops++;
		pair->now.untimed_bytes += 77;
	}
	calls_stop(api, group);
}

static void add_up(struct driver_log *all, const struct driver_log *log)
{
	const uint64_t *from = (const uint64_t *)log;
	uint64_t *to = (uint64_t *)all;

	for (size_t i = 0; i < sizeof(*log) / sizeof(*from); i++)
		to[i] += from[i];
}

/* The record of a communicator against both logs, when all its kernels are told and a round has
 * passed. In a full pool other threads look after this one's slots, too, and what is late is taken
 * for what has no kernel: then the sums of the whole are looked at only. */
static bool record_is_right(const struct pair *pair)
{
	uint32_t generation;
	unsigned index = handle_context_comm(pair->comm, &generation);
	const struct box_comm *comm = &box.comms[index];
	struct laws_sums sums = { 0 };

	for (unsigned i = 0; i < BOX_OPS; i++)
		sums.in_flight_of[index] += track_in_use(box.ops[i].generation) &&
		                            box.ops[i].comm == index &&
		                            box.ops[i].comm_generation == generation;
	uint64_t not_believed = pair->kernels_now.whole_ops - comm->completed;

	return is_crowded || (comm->generation == generation && comm->lost == pair->now.no_handle &&
	                      not_believed <= box.header->dropped[BOX_DROP_IMPLAUSIBLE] &&
	                      comm->untimed == pair->now.untimed_ops + not_believed &&
	                      !laws_of_record(&box, &sums, index, pair->now.ops));
}

static void end_comm(struct pair *pair, unsigned number)
{
	push(pair, &(struct driver_op){ .last = true });
	while (atomic_load(&pair->ended) <= number) {
		atomic_store(&pair->paused, false);
		sched_yield();
	}
	pthread_mutex_lock(&tables);
	sweep_round(&sweep, &inspector_track, clock_ticks());
	if (number + 1 < COMMS) { /* the last one stays, and its operations settle later */
		pair->wrong |= !record_is_right(pair);
		comms_remove(&inspector_track, pair->comm);
	}
	pthread_mutex_unlock(&tables);
	add_up(&pair->all, &pair->now);
	add_up(&pair->kernels_all, &pair->kernels_now);
}

static void *application(void *argument)
{
	struct pair *pair = argument;

	for (unsigned number = 0; number < COMMS; number++) {
		bool crowds = is_crowded && number % 24 == 0;
		struct comm_fields words = {
			.id = number, .name = "c", .nranks = 8, .nnodes = 1, .rank = RANK
		};

		memset(&pair->now, 0, sizeof(pair->now));
		memset(&pair->kernels_now, 0, sizeof(pair->kernels_now));
		pthread_mutex_lock(&tables);
		pair->comm = comms_add(&inspector_track, &words);
		pthread_mutex_unlock(&tables);
		atomic_store(&pair->paused, crowds);
		for (unsigned i = 0; i < (crowds ? GROUPS_OF_CROWD : GROUPS_OF_COMM); i++)
			one_group(pair, crowds, number + 1 == COMMS);
		end_comm(pair, number);
	}
	return NULL;
}

/* --- a run --- */

static void *rounds(void *argument)
{
	(void)argument;
	while (!atomic_load(&over)) {
		pthread_mutex_lock(&tables);
		sweep_round(&sweep, &inspector_track, clock_ticks());
		pthread_mutex_unlock(&tables);
		sched_yield();
	}
	return NULL;
}

static void play(uint64_t seed)
{
	pthread_t threads[2 * PAIRS], writer;
	int error;

	box_open(&box, -1, "0", &error);
	track_init(&inspector_track, &box, clock_calibrate(),
	           &(struct track_options){ .p2p = true,
	                                    .timing = api == 3 ? BOX_TIMING_CPU : BOX_TIMING_GPU });
	memset(&sweep, 0, sizeof(sweep));
	memset(pairs, 0, sizeof(pairs));
	atomic_store(&over, false);
	pthread_create(&writer, NULL, rounds, NULL);
	for (unsigned i = 0; i < PAIRS; i++) {
		for (unsigned side = 0; side < 2; side++)
			pairs[i].random[side] =
			    (seed + 1) * 0x9e3779b97f4a7c15ull + 2 * i + side + 1;
		pthread_create(&threads[2 * i], NULL, application, &pairs[i]);
		pthread_create(&threads[2 * i + 1], NULL, kernels, &pairs[i]);
	}
	for (unsigned i = 0; i < 2 * PAIRS; i++)
		pthread_join(threads[i], NULL);
	atomic_store(&over, true);
	pthread_join(writer, NULL);
}

/* Time for what waits for more channels, and for what was overtaken. */
static void let_settle(void)
{
	uint64_t second = (1ull << 32) * 1000000000ull / inspector_track.ns_per_tick_q32,
		 now = clock_ticks();

	for (unsigned i = 1; i <= 8; i++)
		sweep_round(&sweep, &inspector_track, now + i * second);
}

static void compare(const struct laws_sums *sums, const struct driver_log *told,
                    const struct driver_log *kernels)
{
	uint64_t busy = 0, implausible = box.header->dropped[BOX_DROP_IMPLAUSIBLE];

	for (unsigned i = 0; i < BOX_KEYS; i++)
		busy += box.keys[i].used == 1 && box.keys[i].algo != BOX_ALGO_GROUP
			    ? box.keys[i].busy_ns
			    : 0;
	ok(sums->completed + implausible >= kernels->whole_ops &&
	       sums->completed <= kernels->whole_ops + (tells_late ? kernels->halves : 0),
	   "what had all its kernels is completed: %llu of %llu", (laws_number)sums->completed,
	   (laws_number)kernels->whole_ops);
	ok(tells_late || implausible || sums->bytes == kernels->whole_bytes,
	   "with the driver's bytes (%llu of %llu)", (laws_number)sums->bytes,
	   (laws_number)kernels->whole_bytes);
	ok(tells_late || api == 3 || busy == kernels->busy_ns, "and in the driver's time");
	ok(sums->untimed >= told->untimed_ops &&
	       sums->untimed <= told->untimed_ops + kernels->nevers + implausible,
	   "what has no time is untimed: %llu of %llu", (laws_number)sums->untimed,
	   (laws_number)told->untimed_ops);
	/* The times of v3 are our own clock's, which on Arm may not have moved. */
	ok((api == 3 || !implausible) && !box.header->dropped[BOX_DROP_NO_KEY] && !told->no_handle,
	   "nothing else is dropped");
}

static void test_conserves(uint64_t seed)
{
	struct driver_log told = { 0 }, kernels = { 0 };
	struct laws_sums sums;
	bool wrong = false;

	play(seed);
	for (unsigned i = 0; i < PAIRS; i++) {
		add_up(&told, &pairs[i].all);
		add_up(&kernels, &pairs[i].kernels_all);
		wrong |= pairs[i].wrong;
	}
	let_settle();
	const struct laws_told all = { .ops = told.ops, .bytes = told.bytes, .races = is_crowded };
	const char *broken = laws_broken(&box, &all, &sums);

	ok(!broken, "v%u, seed %llu%s%s: %s", api, (laws_number)seed,
	   tells_late ? ", late ends" : "", is_crowded ? ", a full pool" : "",
	   broken ? broken : "nothing is lost, counted twice or made up");
	ok(!wrong, "each communicator has its own when it is destroyed");
	if (!is_crowded)
		compare(&sums, &told, &kernels);
	else
		ok(told.no_handle && box.header->dropped[BOX_DROP_NO_SLOT] == told.no_handle,
		   "what found no slot got no handle (%llu)", (laws_number)told.no_handle);
}

int main(void)
{
	const char *given = getenv("CONSERVES_SEED");
	uint64_t seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
	static const unsigned versions[] = { 3, 4, 7 };

	log2_init();
	for (unsigned i = 0; i < 9; i++) {
		api = versions[i % 3];
		tells_late = i / 3 == 1;
		is_crowded = i / 3 == 2;
		test_conserves(seed);
	}
	return done_testing();
}
