/* SPDX-License-Identifier: Apache-2.0 */
/* Time lines: who has one, what is in it, and what becomes of it when it is full. */
#include <string.h>

#include "hot/keys.h"
#include "upkeep/timeline.h"
#include "tap.h"

#define NOW_S 1700000000u /* a multiple of every window here */
#define MS 1000000u

static struct box box;
static struct timeline lines;

static void begin(void)
{
	int error;

	memset(&lines, 0, sizeof(lines));
	box_open(&box, -1, "0", &error);
	box.comms[0].id = 0xabc;
	atomic_store(&box.comms[0].state, BOX_COMM_LIVE);
}

static void operate(unsigned kind, uint64_t ops, uint64_t each_ns)
{
	struct box_key *key = &box.keys[kind];

	key->func = BOX_FUNC_ALLREDUCE;
	key->size_class = (uint8_t)kind;
	atomic_store(&key->used, 1);
	atomic_fetch_add(&box.hists[kind].count[hist_bucket(each_ns)], (uint32_t)ops);
	atomic_fetch_add(&key->bytes, ops << kind);
	atomic_fetch_add(&key->busy_ns, ops * each_ns);
	atomic_fetch_add(&key->last_index, ops);
	atomic_fetch_add(&key->ops, ops);
}

static void round_at(uint32_t second)
{
	timeline_round(&lines, &box, (uint64_t)(NOW_S + second) * 1000000000u);
}

static const struct box_line *line_of(unsigned kind)
{
	for (unsigned i = 0; i < BOX_LINES; i++)
		if (atomic_load(&box.lines[i].used) && box.lines[i].size_class == kind)
			return &box.lines[i];
	return NULL;
}

static uint64_t ops_in(const struct box_line *line)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; line && i < atomic_load(&line->windows); i++)
		sum += atomic_load(&line->window[i].ops);
	return sum;
}

static void test_the_busiest_have_lines_with_all_of_theirs(void)
{
	bool all = true, none = true;

	begin();
	for (unsigned kind = 0; kind < 12; kind++)
		operate(kind, 10, (kind + 1) * MS);
	round_at(0);
	for (unsigned kind = 0; kind < 12; kind++) {
		if (kind >= 4)
			all = all && ops_in(line_of(kind)) == 10;
		else
			none = none && !line_of(kind);
	}
	ok(all, "the eight busiest of twelve kinds have all their operations in a line");
	ok(none, "the others have none");
}

static void test_only_one_that_is_twice_as_busy_takes_over(void)
{
	begin();
	for (unsigned kind = 0; kind < BOX_LINES; kind++)
		operate(kind, 10, (kind + 1) * MS);
	round_at(0);
	operate(20, 10, MS);
	round_at(1);
	ok(!line_of(20), "a kind that came later and has as little as the least busy has no line");
	operate(20, 20, MS);
	round_at(2);
	ok(line_of(20) && !line_of(0), "one with three times as much has its line");
	ok(!ops_in(line_of(20)), "and what was before is not in it");
	operate(20, 5, MS);
	round_at(3);
	ok(ops_in(line_of(20)) == 5 && line_of(20)->since_s == NOW_S + 2,
	   "from then on it has all");
	ok(ops_in(line_of(7)) == 10, "the others keep theirs");
}

static void test_a_full_line_has_longer_windows_and_loses_nothing(void)
{
	const uint32_t second_last = 10 * (BOX_LINE_WINDOWS + 31);
	const struct box_line *line;
	uint64_t ops = 0;
	bool rising = true, ended = true;

	begin();
	/* Not from a multiple of 20 s: then the line is full in the middle of one of its longer
	 * windows. */
	for (uint32_t second = 10; second <= second_last; second++) {
		operate(20, 1 + second % 3, MS);
		ops += 1 + second % 3;
		round_at(second);
	}
	line = line_of(20);
	ok(ops_in(line) == ops, "all operations are in the windows");
	ok(atomic_load(&line->window_s) == 20, "which are twice as long");
	for (uint32_t i = 1; i < atomic_load(&line->windows); i++) {
		const struct box_window *window = &line->window[i];

		rising = rising && atomic_load(&window->start_s) > atomic_load(&window[-1].start_s);
		ended = ended && atomic_load(&window->first_index) ==
		                     atomic_load(&window[-1].last_index) + 1;
	}
	ok(rising, "each begins after the one before");
	ok(ended, "and with the next operation");
}

static bool is_rising(const struct box_line *line)
{
	for (uint32_t i = 1; i < atomic_load(&line->windows); i++)
		if (atomic_load(&line->window[i].start_s) <=
		    atomic_load(&line->window[i - 1].start_s))
			return false;
	return true;
}

static void test_operations_far_between(void)
{
	static const uint32_t periods_s[] = { 20, 40, 45, 81, 363, 600 };

	for (unsigned p = 0; p < sizeof(periods_s) / sizeof(*periods_s); p++) {
		begin();
		for (uint32_t i = 0; i < 5000; i++) {
			operate(20, 1, MS);
			round_at(i * periods_s[p] + p);
		}
		const struct box_line *line = line_of(20);

		ok(line && atomic_load(&line->windows) <= BOX_LINE_WINDOWS &&
		       ops_in(line) == 5000 && is_rising(line) && !atomic_load(&box.lines[1].used),
		   "one operation each %u s stays in its line", periods_s[p]);
	}
}

static void test_a_clock_that_is_set_back(void)
{
	begin();
	for (uint32_t s = 100; s < 160; s++) {
		operate(20, 1, MS);
		round_at(s < 130 ? s : s - 3);
	}
	const struct box_line *line = line_of(20);

	ok(is_rising(line) && ops_in(line) == 60, "set back by little, a line goes on");
	operate(20, 1, MS);
	round_at(20);
	operate(20, 1, MS);
	round_at(31);
	ok(is_rising(line) && ops_in(line) == 1 && line->since_s == NOW_S + 20,
	   "by more, it begins anew and says so");
}

static void test_a_histogram_that_is_halved_spoils_no_window(void)
{
	begin();
	operate(20, 4000000000u, 2 * MS);
	operate(20, 1000, 9 * MS);
	round_at(0);
	operate(20, 400, 2 * MS);
	round_at(10);
	keys_halve(&box.hists[20]);
	operate(20, 300, 4 * MS);
	round_at(20);
	operate(20, 300, 3 * MS);
	round_at(30);
	const struct box_line *line = line_of(20);
	const struct box_window *window = &line->window[atomic_load(&line->windows) - 2];

	ok(hist_bucket(window[0].median_ns) == hist_bucket(4 * MS) &&
	       hist_bucket(window[1].median_ns) == hist_bucket(3 * MS),
	   "the window in which it was halved has the times of its own operations (%llu, %llu)",
	   (unsigned long long)window[0].median_ns, (unsigned long long)window[1].median_ns);
}

int main(void)
{
	test_the_busiest_have_lines_with_all_of_theirs();
	test_only_one_that_is_twice_as_busy_takes_over();
	test_a_full_line_has_longer_windows_and_loses_nothing();
	test_a_histogram_that_is_halved_spoils_no_window();
	test_operations_far_between();
	test_a_clock_that_is_set_back();
	return done_testing();
}
