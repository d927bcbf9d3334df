/* SPDX-License-Identifier: Apache-2.0 */
/* The guard of the budget, second by second on a made-up clock. */
#include "ask/budget.h"
#include "tap.h"

#define SECOND_NS 1000000000ull
#define PERCENT_PPM 10000u

static struct budget guard;
static uint64_t now_ns, hot_ns, own_ns;
static unsigned changes;

static void begin(uint32_t budget_ppm)
{
	budget_init(&guard, budget_ppm);
	now_ns = 77 * SECOND_NS;
	hot_ns = own_ns = 5 * SECOND_NS;
	changes = 0;
	budget_begin(&guard, now_ns, hot_ns, own_ns);
}

/* Seconds in which calls would take hot_ppm of a core if all operations were measured. */
static void seconds(unsigned n, uint32_t hot_ppm, uint32_t own_ppm)
{
	for (unsigned i = 0; i < n; i++) {
		now_ns += SECOND_NS;
		hot_ns += hot_ppm * 1000ull / guard.every;
		own_ns += own_ppm * 1000ull;
		changes += budget_round(&guard, now_ns, hot_ns, own_ns);
	}
}

static void test_within_the_budget(void)
{
	begin(PERCENT_PPM);
	seconds(3600, PERCENT_PPM - 10, 0);
	ok(guard.every == 1 && !changes, "within the budget every operation is measured");
	ok(guard.share_ppm > PERCENT_PPM - 20 && guard.share_ppm <= PERCENT_PPM,
	   "the share is known (%u)", guard.share_ppm);
}

static void test_above_the_budget(void)
{
	begin(PERCENT_PPM);
	seconds(4, 3 * PERCENT_PPM, 0);
	ok(guard.every == 1, "four seconds above it change nothing");
	seconds(1, 3 * PERCENT_PPM, 0);
	ok(guard.every == 2, "five do");
	seconds(5, 3 * PERCENT_PPM, 0);
	ok(guard.every == 4, "until it is enough");
	seconds(3600, 3 * PERCENT_PPM, 0);
	ok(guard.every == 4 && changes == 2, "three quarters of the budget stay as they are");
	seconds(3600, 1000 * PERCENT_PPM, 0);
	ok(guard.every == BUDGET_MOST, "one in 64 is the least");
}

static void test_recovery(void)
{
	begin(PERCENT_PPM);
	seconds(10, 3 * PERCENT_PPM, 0);
	seconds(29, PERCENT_PPM, 0);
	ok(guard.every == 4, "a quarter of the budget for 29 s is not enough");
	seconds(1, PERCENT_PPM, 0);
	ok(guard.every == 2, "for 30 s it is");
	seconds(300, PERCENT_PPM + 500, 0);
	ok(guard.every == 2, "as many as would not fit are not measured again");
	seconds(30, PERCENT_PPM - 500, 0);
	ok(guard.every == 1, "as many as fit are");
	seconds(300, PERCENT_PPM - 500, 0);
	ok(guard.every == 1 && changes == 4, "and stay");
}

static void test_a_load_that_comes_and_goes(void)
{
	begin(PERCENT_PPM);
	for (unsigned i = 0; i < 3600 / 40; i++) {
		seconds(35, PERCENT_PPM / 10, 0);
		seconds(5, 2 * PERCENT_PPM, 0);
	}
	ok(changes <= 16, "a load that returns every 40 s changes it seldom (%u times an hour)",
	   changes);
	ok(guard.every == 2, "and less is measured meanwhile");
	seconds(3600, PERCENT_PPM / 10, 0);
	ok(guard.every == 1, "but not for ever");
	changes = 0;
	seconds(5, 2 * PERCENT_PPM, 0);
	seconds(30, PERCENT_PPM / 10, 0);
	ok(changes == 2, "and then it goes as fast as at first");
}

static void test_one_bad_sample(void)
{
	begin(PERCENT_PPM);
	for (unsigned i = 0; i < 100; i++) {
		hot_ns += 2 * SECOND_NS; /* 8 ms in one sample of 256 */
		seconds(5, PERCENT_PPM / 10, 0);
	}
	ok(!changes, "a sample that was preempted is no load");
}

static void test_our_own_thread(void)
{
	begin(PERCENT_PPM);
	seconds(60, PERCENT_PPM / 10, 20 * PERCENT_PPM);
	ok(!changes, "what our thread takes is not saved by measuring less");
	seconds(5, PERCENT_PPM * 3 / 4, PERCENT_PPM / 2);
	ok(changes == 1, "but it leaves less for the rest");
}

/* Network detail would take net_ppm of a core. */
static void seconds_with_net(unsigned n, uint32_t hot_ppm, uint32_t net_ppm)
{
	guard.has_net = true;
	for (unsigned i = 0; i < n; i++) {
		now_ns += SECOND_NS;
		hot_ns += hot_ppm * 1000ull / guard.every + net_ppm * 1000ull / guard.net_fewer;
		changes += budget_round(&guard, now_ns, hot_ns, own_ns);
	}
}

static void test_network_detail_goes_first(void)
{
	begin(PERCENT_PPM);
	seconds_with_net(3600, PERCENT_PPM / 2, 3 * PERCENT_PPM);
	ok(guard.every == 1 && guard.net_fewer == 16,
	   "operations keep their times as long as less network detail is enough");
	seconds_with_net(3600, 3 * PERCENT_PPM, 3 * PERCENT_PPM);
	ok(guard.every == 4 && guard.net_fewer == BUDGET_NET_MOST, "then they lose some, too");
	seconds_with_net(60, PERCENT_PPM / 2, 0);
	ok(guard.every == 1 && guard.net_fewer == BUDGET_NET_MOST, "times come back first");
	seconds_with_net(3600, PERCENT_PPM / 10, 0);
	ok(guard.net_fewer == 1, "and network detail at last");
	guard.has_net = false;
	seconds(5, 3 * PERCENT_PPM, 0);
	ok(guard.every == 2 && guard.net_fewer == 1, "where there is none it is not waited for");
}

static void test_odd_rounds(void)
{
	begin(0);
	seconds(60, 100 * PERCENT_PPM, 0);
	ok(!changes && guard.every == 1, "without a budget there is no guard");
	begin(PERCENT_PPM);
	for (unsigned i = 0; i < 10; i++) {
		now_ns += 6 * SECOND_NS;
		hot_ns += SECOND_NS;
		changes += budget_round(&guard, now_ns, hot_ns, own_ns);
	}
	ok(!changes, "a thread that hardly runs says nothing");
	hot_ns += 100 * SECOND_NS;
	budget_begin(&guard, now_ns, hot_ns, own_ns);
	seconds(10, 0, 0);
	ok(!changes, "what was before the beginning does not count");
	begin(UINT32_MAX);
	seconds(10, UINT32_MAX, UINT32_MAX);
	ok(guard.every <= 2, "nothing overflows");
}

int main(void)
{
	test_within_the_budget();
	test_above_the_budget();
	test_recovery();
	test_a_load_that_comes_and_goes();
	test_one_bad_sample();
	test_our_own_thread();
	test_network_detail_goes_first();
	test_odd_rounds();
	return done_testing();
}
