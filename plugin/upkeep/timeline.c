/* SPDX-License-Identifier: Apache-2.0 */
#include "upkeep/timeline.h"

#include <string.h>

#define relaxed memory_order_relaxed
#define NS_A_SECOND 1000000000u
#define CLOCK_BACK_WINDOWS 2u

static uint64_t get(const _Atomic uint64_t *figure)
{
	return atomic_load_explicit(figure, relaxed);
}

static void set(_Atomic uint64_t *figure, uint64_t value)
{
	atomic_store_explicit(figure, value, relaxed);
}

static bool is_used(const struct box_key *key)
{
	return atomic_load_explicit(&key->used, memory_order_acquire) == 1 &&
	       key->comm < BOX_LIVE_COMMS;
}

static bool is_alike(const struct box_key *a, const struct box_key *b)
{
	return a->comm == b->comm && a->func == b->func && a->size_class == b->size_class;
}

static bool has_key(const struct box_line *line, const struct box *box, const struct box_key *key)
{
	return atomic_load_explicit(&line->used, relaxed) && line->comm == key->comm &&
	       line->func == key->func && line->size_class == key->size_class &&
	       line->comm_generation ==
	           atomic_load_explicit(&box->comms[key->comm].generation, relaxed);
}

/* Sums over the algorithms and protocols. */
static void read_keys(struct timeline_base *sum, const struct box *box, const struct box_line *line)
{
	memset(sum, 0, sizeof(*sum));
	for (unsigned i = 0; i < BOX_KEYS; i++) {
		const struct box_key *key = &box->keys[i];

		if (!is_used(key) || !has_key(line, box, key))
			continue;
		sum->ops += get(&key->ops);
		sum->bytes += get(&key->bytes);
		sum->busy_ns += get(&key->busy_ns);
		if (get(&key->last_index) > sum->last_index)
			sum->last_index = get(&key->last_index);
		for (unsigned b = 0; b < HIST_BUCKETS; b++)
			sum->count[b] += atomic_load_explicit(&box->hists[i].count[b], relaxed);
	}
}

/* The time that stands for a bucket. */
static uint64_t middle_ns(unsigned bucket)
{
	uint64_t low = hist_lower_ns(bucket);

	return bucket + 1 < HIST_BUCKETS ? (low + hist_lower_ns(bucket + 1)) / 2 : low;
}

/* A histogram with a full bucket is halved (box/histogram.h): then half of what was there is
 * left. */
static bool is_halved(const struct timeline_base *now, const struct timeline_base *base)
{
	for (unsigned b = 0; b < HIST_BUCKETS; b++)
		if (now->count[b] < base->count[b])
			return true;
	return false;
}

static void write_times(struct box_window *window, const struct timeline_base *now,
                        const struct timeline_base *base)
{
	uint64_t all = 0, seen = 0;
	bool first = true, halved = is_halved(now, base);
	uint32_t counts[HIST_BUCKETS];

	for (unsigned b = 0; b < HIST_BUCKETS; b++) {
		uint32_t before = base->count[b] >> halved;

		counts[b] = now->count[b] > before ? now->count[b] - before : 0;
		all += counts[b];
	}
	for (unsigned b = 0; b < HIST_BUCKETS; b++) {
		uint32_t count = counts[b];

		if (count && first)
			set(&window->min_ns, middle_ns(b));
		first = first && !count;
		seen += count;
		if (all && 2 * seen >= all) {
			set(&window->median_ns, middle_ns(b));
			break;
		}
	}
}

/* Two neighbours become one. */
static void merge(struct box_window *into, const struct box_window *from)
{
	uint64_t ops = get(&into->ops), more = get(&from->ops);
	double median = ((double)get(&into->median_ns) * (double)ops +
	                 (double)get(&from->median_ns) * (double)more) /
	                (double)(ops + more);

	if (get(&from->min_ns) < get(&into->min_ns))
		set(&into->min_ns, get(&from->min_ns));
	set(&into->median_ns, (uint64_t)median);
	set(&into->ops, ops + more);
	set(&into->bytes, get(&into->bytes) + get(&from->bytes));
	set(&into->busy_ns, get(&into->busy_ns) + get(&from->busy_ns));
	set(&into->last_index, get(&from->last_index));
	if (atomic_load_explicit(&from->late_ms, relaxed) >
	    atomic_load_explicit(&into->late_ms, relaxed))
		atomic_store_explicit(&into->late_ms, atomic_load_explicit(&from->late_ms, relaxed),
		                      relaxed);
}

static void copy(struct box_window *to, const struct box_window *from)
{
	atomic_store_explicit(&to->start_s, atomic_load_explicit(&from->start_s, relaxed), relaxed);
	atomic_store_explicit(&to->late_ms, atomic_load_explicit(&from->late_ms, relaxed), relaxed);
	set(&to->ops, get(&from->ops));
	set(&to->bytes, get(&from->bytes));
	set(&to->busy_ns, get(&from->busy_ns));
	set(&to->min_ns, get(&from->min_ns));
	set(&to->median_ns, get(&from->median_ns));
	set(&to->first_index, get(&from->first_index));
	set(&to->last_index, get(&from->last_index));
}

/* Halves the resolution. */
static void thin_out(struct box_line *line)
{
	uint32_t window_s = 2 * atomic_load_explicit(&line->window_s, relaxed);
	uint32_t count = atomic_load_explicit(&line->windows, relaxed), kept = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t start = atomic_load_explicit(&line->window[i].start_s, relaxed);

		if (kept &&
		    start / window_s ==
		        atomic_load_explicit(&line->window[kept - 1].start_s, relaxed) / window_s)
			merge(&line->window[kept - 1], &line->window[i]);
		else
			copy(&line->window[kept++], &line->window[i]);
	}
	atomic_store_explicit(&line->windows, kept, relaxed);
	atomic_store_explicit(&line->window_s, window_s, relaxed);
}

/* Where operations are far between, one halving may make no room. */
static void make_room(struct box_line *line)
{
	while (atomic_load_explicit(&line->windows, relaxed) >= BOX_LINE_WINDOWS)
		thin_out(line);
}

/* The entry of the present window, a new one for its first operation. */
static struct box_window *present(struct box_line *line, const struct timeline_base *base)
{
	uint32_t count = atomic_load_explicit(&line->windows, relaxed);
	struct box_window *window = &line->window[count ? count - 1 : 0];

	if (count && atomic_load_explicit(&window->start_s, relaxed) == base->window_s)
		return window;
	make_room(line);
	count = atomic_load_explicit(&line->windows, relaxed);
	window = &line->window[count];
	atomic_store_explicit(&window->start_s, base->window_s, relaxed);
	atomic_store_explicit(&window->late_ms, 0, relaxed);
	set(&window->ops, 0);
	set(&window->bytes, 0);
	set(&window->busy_ns, 0);
	set(&window->min_ns, 0);
	set(&window->median_ns, 0);
	set(&window->first_index, base->last_index + 1);
	atomic_store_explicit(&line->windows, count + 1, relaxed);
	return window;
}

static void line_round(struct box_line *line, struct timeline_base *base, struct timeline_base *now,
                       uint64_t real_ns)
{
	uint32_t now_s = (uint32_t)(real_ns / NS_A_SECOND);
	uint32_t window_s = atomic_load_explicit(&line->window_s, relaxed);
	uint32_t start_s = now_s - now_s % window_s;
	/* One that was open when windows became longer begins inside of one of those, and ends with
	 * it. */
	bool ended = start_s > base->window_s - base->window_s % window_s;

	/* The clock was set back: by little, and the present window goes on; by more, and the line
	 * begins anew. */
	if (now_s + CLOCK_BACK_WINDOWS * window_s < base->window_s) {
		atomic_store_explicit(&line->windows, 0, relaxed);
		line->since_s = now_s;
		*base = *now;
		base->window_s = start_s;
		return;
	}

	if (now->ops != base->ops) {
		struct box_window *window = present(line, base);

		set(&window->bytes, now->bytes - base->bytes);
		set(&window->busy_ns, now->busy_ns - base->busy_ns);
		set(&window->last_index, now->last_index);
		write_times(window, now, base);
		set(&window->ops, now->ops - base->ops);
		if (ended && start_s > base->window_s)
			atomic_store_explicit(
			    &window->late_ms,
			    (uint32_t)((real_ns - (uint64_t)start_s * NS_A_SECOND) / 1000000),
			    relaxed);
	}
	if (!ended)
		return;
	*base = *now;
	base->window_s = start_s;
	make_room(line);
}

static bool is_followed(const struct box *box, const struct box_key *key)
{
	for (unsigned i = 0; i < BOX_LINES; i++)
		if (has_key(&box->lines[i], box, key))
			return true;
	return false;
}

/* The kind with the most time in it that has no line, and that time; NULL: all have one. */
static const struct box_key *busiest(const struct box *box, uint64_t *busy_ns)
{
	const struct box_key *best = NULL;

	*busy_ns = 0;
	for (unsigned i = 0; i < BOX_KEYS; i++) {
		const struct box_key *key = &box->keys[i];
		uint64_t sum = 0;

		if (!is_used(key) || !get(&key->ops) || is_followed(box, key))
			continue;
		for (unsigned j = 0; j < BOX_KEYS; j++)
			if (is_used(&box->keys[j]) && is_alike(&box->keys[j], key))
				sum += get(&box->keys[j].busy_ns);
		if (sum > *busy_ns) {
			*busy_ns = sum;
			best = key;
		}
	}
	return best;
}

static void take_over(struct box_line *line, const struct box *box, const struct box_key *key,
                      uint32_t since_s)
{
	const struct box_comm *comm = &box->comms[key->comm];

	atomic_store_explicit(&line->windows, 0, relaxed);
	atomic_store_explicit(&line->window_s, BOX_LINE_S, relaxed);
	line->comm_id = comm->id;
	line->comm = key->comm;
	line->comm_generation = atomic_load_explicit(&comm->generation, relaxed);
	line->rank = comm->rank;
	line->func = key->func;
	line->size_class = key->size_class;
	line->since_s = since_s;
	atomic_store_explicit(&line->used, 1, memory_order_release);
}

/* What a line has been given so far, also when its communicator is gone. */
static uint64_t line_busy_ns(const struct box *box, const struct box_line *line,
                             const struct timeline_base *base)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < BOX_KEYS; i++)
		if (is_used(&box->keys[i]) && has_key(line, box, &box->keys[i]))
			sum += get(&box->keys[i].busy_ns);
	return sum > base->busy_ns ? sum : base->busy_ns;
}

/* Gives a line to a kind without one: a free line at once, and then it has all of its operations;
 * that of another only when it has less than half as much, and then from here on. */
static bool choose(struct timeline *lines, struct box *box, uint32_t now_s)
{
	uint64_t busy_ns, line_ns, least_ns = UINT64_MAX;
	const struct box_key *key = busiest(box, &busy_ns);
	unsigned least = BOX_LINES;

	for (unsigned i = 0; key && i < BOX_LINES; i++) {
		if (!atomic_load_explicit(&box->lines[i].used, relaxed)) {
			take_over(&box->lines[i], box, key, now_s);
			memset(&lines->base[i], 0, sizeof(lines->base[i]));
			lines->base[i].window_s = now_s - now_s % BOX_LINE_S;
			return true;
		}
		line_ns = line_busy_ns(box, &box->lines[i], &lines->base[i]);
		if (line_ns < least_ns) {
			least_ns = line_ns;
			least = i;
		}
	}
	if (!key || busy_ns / 2 <= least_ns)
		return false;
	take_over(&box->lines[least], box, key, now_s);
	read_keys(&lines->base[least], box, &box->lines[least]);
	lines->base[least].window_s = now_s - now_s % BOX_LINE_S;
	return true;
}

void timeline_round(struct timeline *lines, struct box *box, uint64_t real_ns)
{
	uint32_t now_s = (uint32_t)(real_ns / NS_A_SECOND);

	atomic_fetch_add(&box->header->layout_seq, 1);
	while (choose(lines, box, now_s))
		;
	for (unsigned i = 0; i < BOX_LINES; i++) {
		struct box_line *line = &box->lines[i];

		if (!atomic_load_explicit(&line->used, relaxed) ||
		    line->comm_generation !=
		        atomic_load_explicit(&box->comms[line->comm].generation, relaxed))
			continue; /* its communicator is gone: what it has stays */
		read_keys(&lines->now, box, line);
		line_round(line, &lines->base[i], &lines->now, real_ns);
	}
	atomic_fetch_add(&box->header->layout_seq, 1);
}
