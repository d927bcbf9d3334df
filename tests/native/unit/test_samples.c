/* SPDX-License-Identifier: Apache-2.0 */
/* Exact records of operations: which are kept, what is in them, and that the bursts of any two
 * ranks nest. */
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nccl/abi.h"
#include "upkeep/samples.h"
#include "hotbox.h"

#define S 1000000000ull

static struct samples samples;

static void begin_samples(void)
{
	begin();
	gpu_ns = track_now_ns(&track);
	samples_init(&samples, &track);
}

static const struct box_sample *sample_at(unsigned place)
{
	return &box.samples[place];
}

static const struct box_sample_kind *kind_at(const struct box_sample *sample)
{
	return &box.sample_kinds[sample->kind];
}

static void test_collective(void)
{
	begin_samples();
	void *op = track_operation(&track, comm,
	                           &(struct event){ .peer = EVENT_NO_PEER,
	                                            .func = "AllReduce",
	                                            .datatype = "ncclFloat32",
	                                            .algo = "TREE",
	                                            .proto = "LL128",
	                                            .count = 300001,
	                                            .sequence = 41,
	                                            .channels = 2 });
	void *one = kernel(op, 0, 1000), *two = kernel(op, 1, 900);

	stop(one, 5000);
	ok(!samples_round(&samples), "an operation that is not over is not there");
	stop(two, 6000);
	ok(samples_round(&samples) == 1 && box.header->samples_kept == 1, "one that is over is");
	const struct box_sample *sample = sample_at(0);
	const struct box_sample_kind *kind = kind_at(sample);

	ok(sample->start_ns == gpu_ns + 900 && sample->stop_ns == gpu_ns + 6000,
	   "with begin and end by the GPU's clock");
	ok(sample->index == 42 && !sample->peer && sample->channels == 2 && !sample->flags,
	   "NCCL's number for it, from 1, and its channels");
	ok((uint64_t)sample->mantissa << (kind->size_class - 15) == (1200004 & ~31),
	   "and its bytes (%llu)", (unsigned long long)sample->mantissa << (kind->size_class - 15));
	ok(kind->used == 1 && kind->comm_id == 7 && kind->nranks == 8 && kind->nnodes == 2 &&
	       kind->rank == 3 && !kind->gpu && !kind->incarnation && !strcmp(kind->name, "c"),
	   "its kind knows the communicator");
	ok(kind->func == BOX_FUNC_ALLREDUCE && kind->size_class == 20 &&
	       kind->algo == BOX_ALGO_TREE && kind->proto == BOX_PROTO_LL128,
	   "and what it was");
	const struct box_union *gpu = &box.unions[0];

	ok(gpu->used == 1 && gpu->operations == 1 && gpu->busy_ns == 5100 && gpu->windows == 1,
	   "the GPU was busy for its time");
	whole_operation(10000, 12000);
	ok(samples_round(&samples) == 1 && sample_at(1)->mantissa == 4096 &&
	       kind_at(sample_at(1))->size_class == 12 && sample_at(1)->kind != sample->kind,
	   "another size is another kind; small ones have all their bytes");
}

static void test_peers(void)
{
	static const struct {
		const char *func;
		int peer;
		uint64_t bytes;
		uint32_t index;
	} calls[] = { { "Send", 5, 8192, 1 }, { "Send", 5, 8192, 2 }, { "Recv", 5, 8192, 1 },
	              { "Send", 6, 8192, 1 }, { "Send", 5, 0, 3 },    { "Send", 5, 8192, 4 },
	              { "Send", 3, 8192, 0 } };
	unsigned kept = 0;
	bool is_right = true;

	begin_samples();
	for (unsigned i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		void *op = p2p(NULL, calls[i].func, calls[i].peer, calls[i].bytes);

		if (!op) /* nothing to send, or to oneself */
			continue;
		stop(kernel(op, 0, 1000 * i + 1), 1000 * i + 500);
		samples_round(&samples);
		is_right = is_right && sample_at(kept)->index == calls[i].index &&
		           sample_at(kept)->peer == calls[i].peer + 1;
		kept++;
	}
	ok(is_right && kept == 5,
	   "Sends and Recvs are numbered by peer, those without a time, too (%u)", kept);
}

/* A call with so many Sends and as many Recvs. */
static void group_of(unsigned peers)
{
	void *group = track_group_start(&track, comm), *call = p2p_calls(comm, group, 2 * peers);
	void *ops[2 * BOX_FUNCS];

	for (unsigned i = 0; i < peers; i++) {
		ops[2 * i] = p2p(call, "Send", (int)(i + (i >= 3)), 1024);
		ops[2 * i + 1] = p2p(call, "Recv", (int)(i + (i >= 3)), 1024);
	}
	track_group_stop(&track, group);
	for (unsigned i = 0; i < 2 * peers; i++)
		stop(kernel(ops[i], 0, 100 + i), 9000 + i);
	gpu_ns += 20000;
	samples_round(&samples);
}

static void test_groups(void)
{
	begin_samples();
	group_of(4);
	ok(box.header->samples_kept == 9 && sample_at(8)->flags == BOX_SAMPLE_GROUP &&
	       sample_at(8)->index == 1 && !sample_at(8)->peer &&
	       kind_at(sample_at(8))->func == BOX_FUNC_SENDRECV &&
	       kind_at(sample_at(8))->algo == BOX_ALGO_GROUP,
	   "a group of eight members is there, and they are, too (%llu)",
	   (unsigned long long)box.header->samples_kept);
	ok(box.unions[0].busy_ns == 8907, "its time counts once (%llu)",
	   (unsigned long long)box.unions[0].busy_ns);
	group_of(7);
	ok(box.header->samples_kept == 10 && kind_at(sample_at(9))->func == BOX_FUNC_ALLTOALL &&
	       sample_at(9)->index == 1,
	   "of a larger one only the group");
	group_of(7);
	ok(sample_at(10)->index == 2 && sample_at(10)->stop_ns - sample_at(10)->start_ns == 8913,
	   "and they are numbered by function");
	group_of(4);
	ok(sample_at(19)->index == 2 && kind_at(sample_at(19))->func == BOX_FUNC_SENDRECV,
	   "each for itself");
}

/* As NCCL calls it from v4 on. */
static void *start_fast(void)
{
	void *op = NULL;

	track_coll(&track, comm,
	           &(struct abi_coll){ .func = "AllReduce",
	                               .datatype = "ncclFloat32",
	                               .algo = "RING",
	                               .proto = "SIMPLE",
	                               .count = 1024,
	                               .channels = 1 },
	           &op);
	return op;
}

static void test_queued(void)
{
	unsigned first = 0, later = 0, at = 0;

	begin_samples();
	for (unsigned i = 1; i <= TRACK_CALL_FIRST + 256; i++) {
		uint64_t called = track_now_ns(&track);
		void *op = i % 2 ? start(comm, 1, 1024) : start_fast();

		gpu_ns = called;
		stop(kernel(op, 0, 3000000), 3001000);
	}
	samples_round(&samples);
	for (unsigned i = 0; i < TRACK_CALL_FIRST + 256; i++) {
		bool known = sample_at(i)->queued_us && !sample_at(i)->flags;

		first += known && i < TRACK_CALL_FIRST;
		later += known && i >= TRACK_CALL_FIRST;
		at += known && i >= TRACK_CALL_FIRST && (i + 1) % TRACK_CALL_SAMPLE == 0;
	}
	ok(first == TRACK_CALL_FIRST,
	   "of a communicator's first operations it is known how long they were queued");
	ok(later == 4 && at == 4, "later of one operation in 64");
}

/* An operation whose call is not timed, called and begun so long after now. */
static void late_op(uint64_t begun_ns)
{
	void *op = start(comm, 1, 1024);

	gpu_ns = track_now_ns(&track);
	stop(kernel(op, 0, begun_ns), begun_ns + 1000);
}

static unsigned within_of(const struct box_sample *sample)
{
	return sample->flags >> BOX_SAMPLE_WITHIN_SHIFT & 15;
}

static void test_called_between_rounds(void)
{
	const uint64_t second = 1000000000;

	begin_samples();
	while (completed() < TRACK_CALL_FIRST)
		late_op(0);
	samples_round(&samples);
	samples_round(&samples);
	unsigned at = TRACK_CALL_FIRST;

	late_op(1000); /* soon after the one before */
	samples_round(&samples);
	ok(!sample_at(at)->queued_us && !sample_at(at)->flags,
	   "of another one nothing is known where it begins at once (%u us, flags %u, %llu kept)",
	   sample_at(at)->queued_us, sample_at(at)->flags,
	   (unsigned long long)box.header->samples_kept);
	late_op(2 * second);
	samples_round(&samples);
	const struct box_sample *sample = sample_at(at + 1);

	/* How long that is depends on the machine: milliseconds beside others. */
	ok(within_of(sample) >= 1 && within_of(sample) < BOX_SAMPLE_AT_LEAST &&
	       sample->queued_us >= 2000000 &&
	       sample->queued_us < 2900000 + (1000u << within_of(sample)),
	   "of one that begins long after the one before, within the time between two rounds"
	   " (%u us, class %u)",
	   sample->queued_us, within_of(sample));
	void *early = start(comm, 1, 1024);

	for (unsigned i = 0; i < CALL_ROUNDS; i++)
		samples_round(&samples);
	gpu_ns = track_now_ns(&track);
	stop(kernel(early, 0, 9 * second), 9 * second + 1000);
	samples_round(&samples);
	ok(within_of(sample_at(at + 2)) == BOX_SAMPLE_AT_LEAST &&
	       sample_at(at + 2)->queued_us >= 9000000,
	   "of one called before all rounds that are remembered, how long it was at least");
}

static void test_no_key(void)
{
	begin_samples();
	atomic_store(&track.keys.taken, BOX_KEYS);
	for (unsigned i = 0; i < BOX_KEYS; i++)
		box.keys[i].used = 1;
	whole_operation(1000, 2000);
	samples_round(&samples);
	ok(!box.header->samples_kept && box.header->samples_unkinded == 1 &&
	       box.unions[0].busy_ns == 1000,
	   "an operation without a kind is counted, and its GPU was busy");
}

static void test_too_many_kinds(void)
{
	begin_samples();
	for (unsigned i = 0; i < BOX_SAMPLE_KINDS; i++)
		box.sample_kinds[i].used = 1;
	whole_operation(1000, 2000);
	samples_round(&samples);
	ok(!box.header->samples_kept && box.header->samples_unkinded == 1,
	   "so is one for whose kind there is no room");
}

static void test_cpu_timed(void)
{
	begin_as(BOX_TIMING_CPU);
	gpu_ns = track_now_ns(&track);
	samples_init(&samples, &track);
	whole_operation(1000, 2000);
	samples_round(&samples);
	ok(sample_at(0)->flags == BOX_SAMPLE_CPU_TIMED, "what the CPU has timed says so");
}

/* As many communicators come and go as there are records, so that all are folded. */
static void churn(void)
{
	for (unsigned i = 0; i < 2 * BOX_LIVE_COMMS; i++)
		comms_remove(&track,
		             comms_add(&track, &(struct comm_fields){
						   .id = 1000 + i, .nranks = 2, .name = "x" }));
}

static void test_communicators_go(void)
{
	begin_samples();
	whole_operation(1000, 2000);
	comms_remove(&track, comm);
	churn(); /* nobody has looked at the operation yet */
	ok(box.header->samples_kept == 1 && kind_at(sample_at(0))->comm_id == 7 &&
	       kind_at(sample_at(0))->incarnation == 0,
	   "what is over before its communicator goes is kept");
	comm = comms_add(&track, &(struct comm_fields){
				     .id = 7, .name = "c", .nranks = 8, .nnodes = 2, .rank = 3 });
	whole_operation(3000, 4000);
	samples_round(&samples);
	ok(kind_at(sample_at(1))->comm_id == 7 && kind_at(sample_at(1))->incarnation == 1 &&
	       kind_at(sample_at(0))->incarnation == 0,
	   "a communicator of the same id is another one");
	comm = comms_add(&track, &(struct comm_fields){
				     .id = 7, .name = "c", .nranks = 8, .nnodes = 2, .rank = 4 });
	whole_operation(5000, 6000);
	samples_round(&samples);
	ok(kind_at(sample_at(2))->rank == 4 && !kind_at(sample_at(2))->incarnation,
	   "but not another rank of it in this process");
}

static void test_lost(void)
{
	begin_samples();
	whole_operation(1000, 2000);
	samples_round(&samples);
	for (unsigned i = 0; i < 10000; i++)
		whole_operation(1000 * i + 3000, 1000 * i + 4000);
	unsigned taken = samples_round(&samples);

	ok(taken == ENDS_CHUNKS * ENDS_CHUNK - 1 && box.header->samples_lost == 10000 - taken,
	   "what finds no room on its way is counted (%llu)",
	   (unsigned long long)box.header->samples_lost);
	ok(box.unions[0].lost == 10000 - taken && box.unions[0].operations == taken + 1 &&
	       !box.header->dropped[BOX_DROP_STALE],
	   "the window says so, too");
	ok(box.keys[0].ops == 10001, "and the rest of the box has all");
}

/* A rank whose operations have ended at given times, in the past. Its clocks agree with
 * CLOCK_REALTIME. */
static void begin_history(void)
{
	begin_samples();
	uint64_t tick = clock_ticks();

	box.comms[0].clock_ahead_ns =
	    (int64_t)(clock_ticks_to_ns(tick, track.ns_per_tick_q32) - clock_ns(CLOCK_REALTIME));
	box.comms[0].clock_ahead_before_ns = box.comms[0].clock_ahead_ns;
	box.comms[0].clock_since_tick = tick;
	if (keys_find(&track.keys, &box,
	              &(struct key_fields){ .func = BOX_FUNC_ALLREDUCE, .size_class = 12 }))
		ok(false, "a history has the first key");
}

static void ended(uint64_t real_ns, uint64_t number)
{
	uint32_t place = ends_place(&track.ends, &box, 0);

	track.ends.ends[place] = (struct box_sample){ .start_ns = real_ns - 1 - number % 1000,
	                                              .stop_ns = real_ns,
	                                              .index = (uint32_t)number,
	                                              .mantissa = 4096,
	                                              .queued_us = (uint32_t)number };
	ends_hand_over(&box, 0, place);
	if (number % 1000 == 0)
		samples_round(&samples);
}

static int64_t distance_ns(const struct box_sample *sample)
{
	return union_ahead_at(&box.unions[0], sample->stop_ns);
}

static uint64_t real_ns(const struct box_sample *sample)
{
	return sample->stop_ns + (uint64_t)distance_ns(sample);
}

struct bursts {
	unsigned length_bits, period_bits;
	unsigned kept;
	uint32_t *indices; /* a bit for each operation */
};

#define HISTORY_S 500u
#define EDGE_NS 1000000u /* the clocks are read one after the other */

static uint64_t history_begin_ns;

/* The same operations for all, of which this rank has had one in so many. */
static struct bursts play(unsigned every, uint64_t spacing_ns)
{
	struct bursts bursts = { .indices = calloc(HISTORY_S * S / spacing_ns / 32 + 1, 4) };
	uint64_t number = 0;

	begin_history();
	for (uint64_t i = 1; i * spacing_ns < HISTORY_S * S; i++)
		if (i % every == 0)
			ended(history_begin_ns + i * spacing_ns, number = i);
	while (samples_round(&samples))
		;
	bursts.length_bits = box.header->sample_length_bits;
	bursts.period_bits = box.header->sample_period_bits;
	for (unsigned i = 0; i < BOX_SAMPLES; i++)
		if (box.samples[i].start_ns) {
			bursts.kept++;
			bursts.indices[box.samples[i].index / 32] |= 1u
			                                             << box.samples[i].index % 32;
		}
	printf("# one in %u: length 2^%u, period 2^%u, %u kept, last %llu\n", every,
	       bursts.length_bits, bursts.period_bits, bursts.kept, (unsigned long long)number);
	return bursts;
}

/* Neither within the edge of a burst's begin nor of its end. */
static bool is_at_edge(uint64_t ns, unsigned length_bits, unsigned period_bits)
{
	return sample_table_in_burst(ns - EDGE_NS, length_bits, period_bits) !=
	       sample_table_in_burst(ns + EDGE_NS, length_bits, period_bits);
}

static bool has(const struct bursts *bursts, uint64_t index)
{
	return bursts->indices[index / 32] >> index % 32 & 1;
}

static void test_nested(void)
{
	static const unsigned every[] = { 1, 3, 20, 100 };
	uint64_t spacing_ns = 2 * S / 1000;
	struct bursts ranks[4];
	bool is_complete = true, is_pure = true, is_full = true, is_shared = true;

	history_begin_ns = clock_ns(CLOCK_REALTIME) - (HISTORY_S + 3600) * S;
	for (unsigned r = 0; r < 4; r++) {
		ranks[r] = play(every[r], spacing_ns);
		is_full = is_full && ranks[r].kept == box.header->samples_kept &&
		          !box.header->samples_lost &&
		          (ranks[r].kept > BOX_SAMPLES / 4 || every[r] > 3);
	}
	for (uint64_t i = 1; i * spacing_ns < HISTORY_S * S; i++) {
		uint64_t ns = history_begin_ns + i * spacing_ns;
		bool in_all = true, at_edge = false;

		for (unsigned r = 0; r < 4; r++) {
			bool in =
			    sample_table_in_burst(ns, ranks[r].length_bits, ranks[r].period_bits);
			bool edge = is_at_edge(ns, ranks[r].length_bits, ranks[r].period_bits);

			is_complete =
			    is_complete && (edge || !in || i % every[r] || has(&ranks[r], i));
			is_pure = is_pure && (edge || in || !has(&ranks[r], i));
			in_all = in_all && in;
			at_edge = at_edge || edge;
		}
		for (unsigned r = 0; r < 4; r++)
			is_shared =
			    is_shared && (!in_all || at_edge || i % every[r] || has(&ranks[r], i));
	}
	ok(is_full, "a table stays between a quarter and full");
	ok(is_complete, "of what ended in a rank's bursts all is there");
	ok(is_pure, "and nothing else");
	ok(ranks[0].length_bits < 34 && ranks[0].period_bits > 34,
	   "bursts become shorter and rarer");
	ok(is_shared,
	   "what lies in the bursts of all ranks all of them have, whatever their rates");
	for (unsigned r = 0; r < 4; r++)
		free(ranks[r].indices);
}

/* The rule in steps, for a table that is full of one moment, and of many periods. */
static void test_thinning(void)
{
	uint64_t from = (clock_ns(CLOCK_REALTIME) >> 40 << 40) -
	                (1ull << 40); /* a multiple of every period here */

	begin_history();
	for (uint64_t i = 1; i <= BOX_SAMPLES + 1; i++)
		ended(from + i * 100000, i);
	samples_round(&samples);
	ok(box.header->sample_length_bits == 31 && box.header->sample_period_bits == 34,
	   "few periods: bursts become shorter until there is room (2^%u)",
	   box.header->sample_length_bits);
	ok(box.header->sample_seq % 2 == 0 && box.header->sample_seq > 0 &&
	       box.header->samples_kept < BOX_SAMPLES,
	   "then nothing is moving any more");
	begin_history();
	for (uint64_t i = 1; i <= BOX_SAMPLES + 1; i++)
		ended(from + i * (1ull << 34) / 1000, i);
	samples_round(&samples);
	ok(box.header->sample_length_bits == 34 && box.header->sample_period_bits == 35,
	   "many: they become rarer");
	begin_history();
	for (uint64_t i = 1; i <= BOX_SAMPLES + 50; i++)
		ended(from + S / 1000 + i * 10, i);
	samples_round(&samples);
	ok(box.header->sample_length_bits == BOX_SAMPLE_LENGTH_BITS_MIN &&
	       box.header->samples_kept == BOX_SAMPLES && box.header->samples_lost == 50,
	   "more than fits into the shortest burst is lost, and counted");
}

/* A process that is killed while it drops samples leaves whole records. */
static void test_killed(void)
{
	uint64_t from = (clock_ns(CLOCK_REALTIME) >> 40 << 40) - (1ull << 40);
	unsigned odd = 0, found = 0;
	bool is_whole = true;

	for (unsigned round = 0; round < 4; round++) {
		begin_history();
		void *map = mmap(NULL, box.bytes, PROT_READ | PROT_WRITE,
		                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);

		memcpy(map, box.header, box.bytes);
		mremap(map, box.bytes, box.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, box.header);
		pid_t child = fork();

		if (!child) {
			for (uint64_t i = 1;; i++) /* fills the table over and over */
				ended(from + i * 20000, i);
		}
		while (box.header->sample_seq < 2 * (round / 2) + 1)
			usleep(50);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		odd += box.header->sample_seq % 2;
		for (unsigned i = 0; i < BOX_SAMPLES; i++) {
			const struct box_sample *one = &box.samples[i];

			if (!one->start_ns)
				continue;
			found++;
			is_whole = is_whole && one->stop_ns == from + one->index * 20000ull &&
			           one->queued_us == one->index &&
			           one->start_ns == one->stop_ns - 1 - one->index % 1000 &&
			           one->mantissa == 4096 && !one->kind;
		}
	}
	ok(found && is_whole,
	   "what a killed process leaves is whole (%u samples; %u times it was dropping)", found,
	   odd);
}

int main(void)
{
	test_collective();
	test_peers();
	test_groups();
	test_queued();
	test_called_between_rounds();
	test_no_key();
	test_too_many_kinds();
	test_cpu_timed();
	test_communicators_go();
	test_lost();
	test_thinning();
	test_nested();
	test_killed();
	return done_testing();
}
