/* SPDX-License-Identifier: Apache-2.0 */
/* The time that a GPU was in at least one operation: exact, in whatever order operations are
 * reported. */
#include <stdlib.h>
#include <string.h>

#include "tap.h"
#include "upkeep/union.h"

#define S 1000000000ull
/* A GPU's clock begins in 2023, at a multiple of 10 s. */
#define AHEAD ((int64_t)(1700000000 * S))
#define START_S 1700000000u

static struct union_state state;
static struct box_union table;
static _Atomic uint32_t seq;

static void begin(void)
{
	memset(&table, 0, sizeof(table));
	seq = 0;
	union_init(&state, &table, &seq, 3);
	union_set_clock(&state, (uint64_t)AHEAD, AHEAD);
}

static uint64_t window_ns(uint32_t start_s)
{
	for (uint32_t i = 0; i < table.windows; i++)
		if (table.window[i].start_s == start_s)
			return table.window[i].busy_ns;
	return 0;
}

static bool windows_rise(void)
{
	for (uint32_t i = 0; i < table.windows; i++)
		if (table.window[i].start_s % table.window_s ||
		    (i && table.window[i].start_s <= table.window[i - 1].start_s) ||
		    table.window[i].busy_ns > table.window_s * S)
			return false;
	return true;
}

struct interval {
	uint64_t start_ns, stop_ns;
};

/* In the order in which they are reported, in ms. */
static const struct {
	const char *what;
	struct interval operations[6];
	uint64_t busy_ns;
} cases[] = {
	{ "one operation counts its time", { { 100, 150 } }, 50 },
	{ "two apart count both", { { 100, 150 }, { 200, 210 } }, 60 },
	{ "two that touch count both", { { 100, 150 }, { 150, 160 } }, 60 },
	{ "what two cover counts once", { { 100, 150 }, { 120, 160 } }, 60 },
	{ "one within another counts nothing", { { 100, 150 }, { 120, 130 } }, 50 },
	{ "the same twice counts once", { { 100, 150 }, { 100, 150 } }, 50 },
	{ "one that is reported late fills its part of a gap",
	  { { 100, 150 }, { 200, 210 }, { 160, 170 } },
	  70 },
	{ "and that part only once",
	  { { 100, 150 }, { 200, 210 }, { 160, 170 }, { 160, 170 } },
	  70 },
	{ "what is left of the gap on both sides can be filled later",
	  { { 100, 150 }, { 200, 210 }, { 160, 170 }, { 150, 161 }, { 169, 200 } },
	  110 },
	{ "a long one that is reported last fills all gaps",
	  { { 100, 150 }, { 200, 210 }, { 300, 310 }, { 90, 320 } },
	  230 },
	{ "one before all others counts", { { 100, 150 }, { 20, 30 } }, 60 },
	{ "one that reaches over the end counts what is beyond",
	  { { 100, 150 }, { 200, 210 }, { 205, 250 }, { 140, 230 } },
	  150 },
};

static void test_cases(void)
{
	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		uint32_t operations = 0;

		begin();
		for (const struct interval *one = cases[i].operations;
		     operations < 6 && one->stop_ns; one++, operations++)
			union_add(&state, one->start_ns, one->stop_ns);
		ok(table.busy_ns == cases[i].busy_ns && window_ns(START_S) == cases[i].busy_ns,
		   "%s (%llu)", cases[i].what, (unsigned long long)table.busy_ns);
		if (table.operations != operations || table.window[0].operations != operations)
			ok(false, "%s: all are counted", cases[i].what);
	}
}

static void test_windows(void)
{
	begin();
	union_add(&state, 9 * S, 31 * S);
	ok(window_ns(START_S) == S && window_ns(START_S + 10) == 10 * S &&
	       window_ns(START_S + 20) == 10 * S && window_ns(START_S + 30) == S,
	   "a time is divided at the windows' borders");
	ok(table.window[3].operations == 1 && !table.window[0].operations,
	   "an operation counts where it ended");
	union_add(&state, 95 * S, 96 * S);
	ok(table.windows == 5, "windows without an operation are not there");
	union_add(&state, 35 * S, 97 * S);
	ok(table.windows == 10 && window_ns(START_S + 30) == 6 * S &&
	       window_ns(START_S + 60) == 10 * S && windows_rise(),
	   "but when one is reported that ran through them, in their place");
	ok(table.gpu == 3 && table.used == 1 && seq % 2 == 0,
	   "the union knows its GPU, and nothing is moving");
	union_lose(&state, (uint64_t)AHEAD + 61 * S, 4);
	union_lose(&state, (uint64_t)AHEAD + 61 * S, 0);
	ok(table.window[6].lost == 4 && table.lost == 4 && !table.window[5].lost,
	   "a window says what it has lost");
	union_add(&state, 100 * S, 110 * S);
	ok(table.window[table.windows - 1].start_s == START_S + 100,
	   "one that ends at a border ended before it");
}

static void test_doubling(void)
{
	uint64_t busy = 0;

	begin();
	for (uint64_t i = 0; i < 4000; i++)
		union_add(&state, i * 10 * S + S, i * 10 * S + 3 * S);
	for (uint32_t i = 0; i < table.windows; i++)
		busy += table.window[i].busy_ns;
	ok(table.window_s == 160 && table.windows <= BOX_UNION_WINDOWS && windows_rise(),
	   "windows double when they are full (%u s)", table.window_s);
	ok(busy == 8000 * S && table.busy_ns == busy, "and lose nothing");
	ok(table.window[1].busy_ns == 32 * S && table.window[1].operations == 16,
	   "each has what was in those of before");
	union_add(&state, 10 * S + 2 * S, 10 * S + 4 * S);
	ok(table.window[0].busy_ns == 32 * S,
	   "an early gap is closed for good when there are too many");
	ok(table.busy_ns == busy, "then busy time is a lower bound");
}

static void test_clock_set_back(void)
{
	begin();
	union_add(&state, 100 * S, 101 * S);
	union_set_clock(&state, (uint64_t)AHEAD + 95 * S, AHEAD - (int64_t)(7 * S));
	union_add(&state, 102 * S, 103 * S);
	ok(table.windows == 2 && table.window[0].start_s == START_S + 90 && windows_rise(),
	   "a clock that is set back by little goes on in an earlier window");
	union_set_clock(&state, (uint64_t)AHEAD - 3600 * S, AHEAD - (int64_t)(3703 * S));
	ok(!table.windows, "by more, and the windows begin anew");
	union_add(&state, 104 * S, 106 * S);
	ok(table.windows == 1 && table.window[0].start_s == START_S - 3600 &&
	       table.busy_ns == 4 * S,
	   "where the clock is now; the sum stays (%u)", table.window[0].start_s);
}

static void test_full_window(void)
{
	begin();
	union_add(&state, 0, 10 * S);
	union_set_clock(&state, (uint64_t)AHEAD + 10 * S, AHEAD - 5000);
	union_add(&state, 10 * S, 10 * S + 4000);
	ok(window_ns(START_S) == 10 * S && table.busy_ns == 10 * S + 4000,
	   "a window has no more than its length, also when the clocks are adjusted");
}

static void test_history(void)
{
	begin();
	for (uint64_t i = 0; i < 100; i++) {
		union_set_clock(&state, (uint64_t)AHEAD + i * 10 * S, AHEAD + (int64_t)i * 1000);
		union_add(&state, i * 10 * S + 4 * S, i * 10 * S + 5 * S);
	}
	bool is_right = true;

	for (uint64_t i = 0; i < 100; i++)
		is_right = is_right &&
		           union_ahead_at(&table, i * 10 * S + 5 * S) == AHEAD + (int64_t)i * 1000;
	ok(is_right, "the distance of the clocks is known for each window");
	ok(union_ahead_at(&table, 0) == AHEAD && union_ahead_at(&table, 99999 * S) == AHEAD + 99000,
	   "before and after them that of the nearest");
}

/* Against a bitmap: intervals of a few streams, each in order, reported in the order of their ends
 * with some swapped. */
#define SPAN 60000u /* ms */
static bool covered[SPAN];

static int by_report(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return x[2] < y[2] ? -1 : x[2] > y[2];
}

static void test_random(void)
{
	static uint64_t intervals[8000][3]; /* start, stop, when it is reported */
	bool all_right = true;

	for (unsigned round = 0; round < 60 && all_right; round++) {
		unsigned count = 0, streams = 1 + round % 5;
		uint64_t expected[SPAN / 10000] = { 0 };

		srandom(round);
		memset(covered, 0, sizeof(covered));
		for (unsigned stream = 0; stream < streams; stream++) {
			uint64_t at = (uint64_t)(random() % 50);

			while (count < 8000) {
				uint64_t start = at + (uint64_t)(random() % 200);
				uint64_t stop =
				    start + 1 + (uint64_t)(random() % (stream == 1 ? 5000 : 120));

				if (stop >= SPAN)
					break;
				intervals[count][0] = start;
				intervals[count][1] = stop;
				intervals[count++][2] =
				    stop + (uint64_t)(random() % (round % 2 ? 400 : 1));
				memset(&covered[start], true, stop - start);
				at = stop;
			}
		}
		qsort(intervals, count, sizeof(*intervals), by_report);
		begin();
		for (unsigned i = 0; i < count; i++)
			union_add(&state, intervals[i][0] * 1000000, intervals[i][1] * 1000000);
		for (unsigned ms = 0; ms < SPAN; ms++)
			expected[ms / 10000] += covered[ms] ? 1000000 : 0;
		for (unsigned i = 0; i < SPAN / 10000; i++)
			all_right = all_right && window_ns(START_S + 10 * i) == expected[i];
		all_right = all_right && windows_rise() && table.operations == count;
	}
	ok(all_right,
	   "the union of streams that end out of order is that of a bitmap, window by window");
}

int main(void)
{
	test_cases();
	test_windows();
	test_doubling();
	test_clock_set_back();
	test_full_window();
	test_history();
	test_random();
	return done_testing();
}
