/* SPDX-License-Identifier: Apache-2.0 */
/* Network detail: what the writer thread does for it, alone and against the proxies. */
#include <pthread.h>
#include <sched.h>

#include "netbox.h"
#include "upkeep/sweep.h"

static void test_a_hang(void)
{
	begin();
	void *op = send_to(1), *step = net_step_start(&net, op);

	tell(step, ABI_STATE_SEND_PEER_WAIT);
	pass(400 * MS);
	round_now();
	ok(waited(entry(1, true), 0, 400, 0, 0), "what is waited for shows while it is waited for");
	pass(SECOND);
	round_now();
	round_now();
	ok(waited(entry(1, true), 0, 1400, 0, 0), "and goes on");
	pass(100 * MS);
	tell(step, ABI_STATE_SEND_WAIT);
	pass(1 * MS);
	net_stop(&net, step);
	net_stop(&net, op);
	round_now();
	ok(waited(entry(1, true), 0, 1500, 1, 0), "nothing counts twice when it ends after all");
}

static void test_a_late_clock(void)
{
	begin();
	void *step = net_step_start(&net, send_to(1));

	pass(10 * MS);
	net_round(&net, atomic_load(&clock_now) + 2 * MS, 1);
	ok(waited(entry(1, true), 12, 0, 0, 0), "the writer thread may be ahead");
	tell(step, ABI_STATE_SEND_WAIT);
	pass(5 * MS);
	net_stop(&net, step);
	ok(waited(entry(1, true), 12, 0, 3, 0), "that time counts once");
	step = net_step_start(&net, send_to(1));
	pass(10 * MS);
	net_round(&net, atomic_load(&clock_now) - 20 * MS, 1);
	ok(waited(entry(1, true), 12, 0, 3, 0), "nothing is taken back");
	net_stop(&net, step);
	ok(waited(entry(1, true), 22, 0, 3, 0), "or behind");
}

/* Records are used again when they are short. */
static void *take_record_of_first(void)
{
	comms_remove(&track, comm);
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		comms_remove(&track, comms_add(&track, &(struct comm_fields){
							   .id = i, .nranks = 2, .name = "x" }));
	return comms_add(&track, &(struct comm_fields){ .id = 8, .nranks = 2, .name = "other" });
}

static unsigned entries(void)
{
	unsigned used = 0;

	for (unsigned i = 0; i < BOX_NETS; i++)
		used += box.nets[i].used != 0;
	return used;
}

static void test_communicators_end(void)
{
	begin();
	void *op = send_to(1), *step = net_step_start(&net, op);

	pass(5 * MS);
	round_now();
	comms_remove(&track, comm);
	pass(SECOND);
	round_now();
	ok(!slots_in_use() && waited(entry(1, true), 5, 0, 0, 0),
	   "with its communicator an operation is given up");
	net_stop(&net, step);
	ok(stale() == 1, "what comes later is stale");
	void *other = take_record_of_first();

	op = op_of(other, 1, true);
	ok(op, "another one's operations are followed");
	round_now();
	ok(entries() == 1 && !all_ns(entry(1, true)),
	   "the entry of one whose record serves another is free again");
	begin();
	net_step_start(&net, send_to(1));
	take_record_of_first();
	round_now();
	ok(entries() == 1 && !slots_in_use(),
	   "but not in the round that gives up its last operation");
	round_now();
	ok(!entries(), "in the next");
}

static void test_an_end_that_is_not_told(void)
{
	begin();
	void *lost = send_to(1);

	net_step_start(&net, lost);
	for (unsigned i = 0; i < 100; i++) {
		pass(SECOND);
		round_now();
	}
	ok(slots_in_use() == 1, "an operation that hangs is kept, however long");
	uint64_t before = all_ns(entry(1, true));

	for (unsigned i = 0; i < 62; i++) {
		net_stop(&net, send_to(1));
		pass(SECOND);
		round_now();
	}
	ok(before == 100 * SECOND && !slots_in_use(),
	   "one is given up when its peer goes on for long without it");
}

static struct sweep sweep;

static void enqueue(void)
{
	track_operation(&track, comm,
	                &(struct event){ .peer = EVENT_NO_PEER,
	                                 .func = "AllReduce",
	                                 .datatype = "ncclFloat32",
	                                 .count = 1000,
	                                 .channels = 1 });
	sweep_round(&sweep, &track, clock_now); /* tells since when it is in flight */
}

static void test_by_itself(void)
{
	begin_as(CONFIG_NET_AUTO, 4);
	round_now();
	ok(!net_events(&net) && !box.header->net_on, "nothing is asked for while all is well");
	enqueue();
	pass(9 * SECOND);
	ok(!net_round(&net, clock_now, 1), "nor while no operation is old");
	pass(2 * SECOND);
	ok(net_round(&net, clock_now, 1) &&
	       net_events(&net) == (ABI_PROXY_OP | ABI_PROXY_STEP | ABI_NET_PLUGIN),
	   "a hang is suspected when one has been in flight for 10 s");
	pass(30 * SECOND);
	ok(!net_round(&net, clock_now, 1) && box.header->net_on &&
	       box.header->net_ns == 30 * SECOND,
	   "detail is taken as long as it is");
	track_expire(&track, &box.ops[0], box.ops[0].generation, TRACK_SLOT_FREE);
	pass(59 * SECOND);
	ok(!net_round(&net, clock_now, 1) && net_events(&net), "and for a minute after it is over");
	pass(2 * SECOND);
	ok(net_round(&net, clock_now, 1) && !net_events(&net) && !box.header->net_on,
	   "then no more");
	ok(box.header->net_ns == 91 * SECOND, "how long it was taken is known");
	enqueue();
	comms_remove(&track, comm);
	pass(20 * SECOND);
	ok(!net_round(&net, clock_now, 1), "what a destroyed communicator left is no hang");
}

/* A second in which so many tasks of 8 channels are told, each over at once. Returns how many of
 * them had no channel that is followed. */
static unsigned second_of(unsigned tasks)
{
	static unsigned slot;
	unsigned none = 0;

	for (unsigned i = 0; i < tasks; i++) {
		void *task = handle_of(handle_of_use(slot % BOX_OPS, slot / BOX_OPS << 2));
		unsigned followed = 0;

		slot++;
		for (uint8_t channel = 0; channel < 8; channel++) {
			void *op = net_op_start(
			    &net, comm, task,
			    &(struct abi_proxy_op){
				.pid = PID, .channel = channel, .peer = 1, .is_send = 1 });

			followed += op != NULL;
			net_stop(&net, net_step_start(&net, op));
			net_stop(&net, op);
		}
		none += !followed;
	}
	pass(SECOND);
	return none;
}

static void test_more_than_may_be_followed(void)
{
	begin();
	second_of(600);
	round_now();
	ok(box.header->net_every == 1 && !box.header->net_left_out,
	   "4,800 operations a second are all followed");
	second_of(2000);
	round_now();
	ok(box.header->net_every == 4, "of 16,000 one in four, from the next second on");
	uint64_t before = entry(1, true)->steps;

	ok(!second_of(2000), "and some channels of each task");
	ok(entry(1, true)->steps - before == 4000, "a fourth of them (%llu)",
	   (unsigned long long)(entry(1, true)->steps - before));
	ok(box.header->net_left_out == 12000 && !box.header->net_missed,
	   "what is left out is counted, apart from what could not be followed");
	round_now();
	ok(box.header->net_every == 4, "it goes on like this");
	net_round(&net, clock_now, 4);
	ok(box.header->net_every == 2, "after a second without any it is half as many");
	second_of(2000);
	net_round(&net, clock_now, 4);
	ok(box.header->net_every == 16, "a fourth as many may be followed if the budget says so");
	for (unsigned i = 0; i < 4; i++) {
		pass(SECOND);
		round_now();
	}
	ok(box.header->net_every == 1, "after a pause all are followed again");
}

/* What repeats itself meets the same choice no more often than others. */
static void test_whose_turn_it_is(void)
{
	unsigned of_slot[16] = { 0 }, all = 0;

	begin();
	atomic_store(&net.every, 16);
	for (uint32_t use = 0; use < 4000; use++) {
		for (unsigned slot = 0; slot < 16; slot++) {
			void *op = net_op_start(
			    &net, comm, handle_of(handle_of_use(slot, use << 2)),
			    &(struct abi_proxy_op){ .pid = PID, .peer = 1, .is_send = 1 });

			of_slot[slot] += op != NULL;
			all += op != NULL;
			net_stop(&net, op);
		}
	}
	unsigned least = all, most = 0;

	for (unsigned slot = 0; slot < 16; slot++) {
		least = of_slot[slot] < least ? of_slot[slot] : least;
		most = of_slot[slot] > most ? of_slot[slot] : most;
	}
	ok(all > 3800 && all < 4200, "one in sixteen is followed (%u of 64,000)", all);
	ok(least > 185 && most < 315, "of each place in a program's loop (%u to %u)", least, most);
}

static void test_modes(void)
{
	begin_as(CONFIG_NET_OFF, 7);
	ok(!net_events(&net) && !net.ops && !send_to(1), "off takes nothing, not even memory");
	ok(!net_round(&net, clock_now, 1), "nor a round");
	begin_as(CONFIG_NET_ON, 3);
	ok(!net_events(&net) && !net.ops, "nor does an interface that does not tell the states");
	begin_as(CONFIG_NET_ON, 4);
	ok(net_events(&net) == (ABI_PROXY_OP | ABI_PROXY_STEP | ABI_NET_PLUGIN) &&
	       box.header->net_on,
	   "on asks from the start");
	box.header->silent = BOX_SILENT_DISABLED;
	round_now();
	ok(!box.header->net_on, "while the site has it silenced nothing is taken");
}

#define RACE_OPS 3000u
#define RACE_PROXIES 2u

static _Atomic bool over;

/* Steps overlap, so somebody is waited for from the first start to the last stop of an operation.
 */
static void *proxy(void *argument)
{
	unsigned me = (unsigned)(uintptr_t)argument;

	for (unsigned i = 0; i < RACE_OPS; i++) {
		void *op = send_to((int)me), *steps[4];

		for (unsigned s = 0; s < 4; s++) {
			steps[s] = net_step_start(&net, op);
			pass(1000);
		}
		for (unsigned s = 0; s < 4; s++) {
			tell(steps[s], ABI_STATE_SEND_PEER_WAIT);
			pass(1000);
			tell(steps[s], ABI_STATE_SEND_WAIT);
			sched_yield();
			net_stop(&net, steps[s]);
		}
		net_stop(&net, op);
	}
	return NULL;
}

static void *rounds(void *argument)
{
	(void)argument;
	while (!atomic_load(&over)) {
		net_round(&net, clock_ticks(), 0);
		sched_yield();
	}
	return NULL;
}

static void test_races(void)
{
	pthread_t proxies[RACE_PROXIES], writer;
	uint64_t ns = 0, started = atomic_load(&clock_now);

	begin();
	/* Of two threads that meet a new peer at the same time one misses its operation, and counts
	 * that. */
	for (unsigned i = 0; i < RACE_PROXIES; i++)
		net_stop(&net, send_to((int)i));
	atomic_store(&over, false);
	pthread_create(&writer, NULL, rounds, NULL);
	for (unsigned i = 0; i < RACE_PROXIES; i++)
		pthread_create(&proxies[i], NULL, proxy, (void *)(uintptr_t)i);
	for (unsigned i = 0; i < RACE_PROXIES; i++)
		pthread_join(proxies[i], NULL);
	atomic_store(&over, true);
	pthread_join(writer, NULL);
	for (unsigned i = 0; i < RACE_PROXIES; i++) {
		ok(entry((int)i, true)->steps == RACE_OPS * 4, "every step of a proxy is counted");
		ns += all_ns(entry((int)i, true));
	}
	uint64_t passed = atomic_load(&clock_now) - started;

	ok(ns >= passed && ns <= RACE_PROXIES * passed,
	   "the sum of the times is that of the clock (%llu of %llu)", (unsigned long long)ns,
	   (unsigned long long)passed);
	ok(!stale() && !slots_in_use(), "nothing is stale, nothing is left");
}

/* One proxy and the rounds: to the nanosecond. */
static void test_race_of_one(void)
{
	pthread_t thread, writer;
	uint64_t started = atomic_load(&clock_now);

	begin();
	atomic_store(&over, false);
	pthread_create(&writer, NULL, rounds, NULL);
	pthread_create(&thread, NULL, proxy, NULL);
	pthread_join(thread, NULL);
	atomic_store(&over, true);
	pthread_join(writer, NULL);
	ok(all_ns(entry(0, true)) == atomic_load(&clock_now) - started,
	   "no nanosecond is lost or counted twice between the proxy and the rounds (%llu)",
	   (unsigned long long)all_ns(entry(0, true)));
}

int main(void)
{
	test_a_hang();
	test_a_late_clock();
	test_communicators_end();
	test_an_end_that_is_not_told();
	test_by_itself();
	test_modes();
	test_more_than_may_be_followed();
	test_whose_turn_it_is();
	test_races();
	test_race_of_one();
	return done_testing();
}
