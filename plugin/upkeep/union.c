/* SPDX-License-Identifier: Apache-2.0 */
#include "upkeep/union.h"

#include <string.h>

#include "hot/atomics.h"

#define relaxed memory_order_relaxed
#define NS_A_SECOND UINT64_C(1000000000)
#define CLOCK_BACK_WINDOWS UINT64_C(2)

static void add_to_count(_Atomic uint32_t *figure, uint32_t value)
{
	uint32_t old = atomic_load_explicit(figure, relaxed);

	atomic_store_explicit(figure, old <= UINT32_MAX - value ? old + value : UINT32_MAX,
	                      relaxed);
}

static void copy(struct box_union_window *to, const struct box_union_window *from)
{
	atomic_store_explicit(&to->start_s, atomic_load_explicit(&from->start_s, relaxed), relaxed);
	atomic_store_explicit(&to->operations, atomic_load_explicit(&from->operations, relaxed),
	                      relaxed);
	atomic_store_explicit(&to->lost, atomic_load_explicit(&from->lost, relaxed), relaxed);
	atomic_store_explicit(&to->busy_ns, atomic_load_explicit(&from->busy_ns, relaxed), relaxed);
	atomic_store_explicit(&to->ahead_ns, atomic_load_explicit(&from->ahead_ns, relaxed),
	                      relaxed);
}

/* Two neighbours become one. */
static void merge(struct box_union_window *into, const struct box_union_window *from)
{
	add_to_count(&into->operations, atomic_load_explicit(&from->operations, relaxed));
	add_to_count(&into->lost, atomic_load_explicit(&from->lost, relaxed));
	owned_add(&into->busy_ns, atomic_load_explicit(&from->busy_ns, relaxed));
	atomic_store_explicit(&into->ahead_ns, atomic_load_explicit(&from->ahead_ns, relaxed),
	                      relaxed);
}

static uint32_t window_s(const struct box_union *box)
{
	return atomic_load_explicit(&box->window_s, relaxed);
}

static uint32_t windows(const struct box_union *box)
{
	return atomic_load_explicit(&box->windows, relaxed);
}

static uint32_t start_s(const struct box_union *box, uint32_t index)
{
	return atomic_load_explicit(&box->window[index].start_s, relaxed);
}

/* Halves the resolution. */
static void thin_out(struct box_union *box)
{
	uint32_t length_s = 2 * window_s(box), count = windows(box), kept = 0;

	for (uint32_t i = 0; i < count; i++) {
		uint32_t start = start_s(box, i) - start_s(box, i) % length_s;

		if (kept && start == start_s(box, kept - 1)) {
			merge(&box->window[kept - 1], &box->window[i]);
		} else {
			copy(&box->window[kept], &box->window[i]);
			atomic_store_explicit(&box->window[kept++].start_s, start, relaxed);
		}
	}
	atomic_store_explicit(&box->windows, kept, relaxed);
	atomic_store_explicit(&box->window_s, length_s, relaxed);
}

/* Puts an empty window before the one with that index. There is room. */
static void insert(struct box_union *box, uint32_t index, uint32_t start, int64_t ahead_ns)
{
	uint32_t count = windows(box);
	struct box_union_window *window = &box->window[index];

	for (uint32_t i = count; i > index; i--)
		copy(&box->window[i], &box->window[i - 1]);
	atomic_store_explicit(&window->start_s, start, relaxed);
	atomic_store_explicit(&window->operations, 0, relaxed);
	atomic_store_explicit(&window->lost, 0, relaxed);
	atomic_store_explicit(&window->busy_ns, 0, relaxed);
	atomic_store_explicit(&window->ahead_ns, ahead_ns, relaxed);
	atomic_store_explicit(&box->windows, count + 1, memory_order_release);
}

/* Returns the window of that second, a new one if need be. */
static struct box_union_window *find_window(struct union_state *state, uint32_t second)
{
	struct box_union *box = state->box;
	uint32_t start = second - second % window_s(box), after = windows(box);

	while (after && start_s(box, after - 1) > start)
		after--;
	if (after && start_s(box, after - 1) == start)
		return &box->window[after - 1];
	atomic_fetch_add_explicit(state->seq, 1, memory_order_acq_rel);
	while (windows(box) >= BOX_UNION_WINDOWS)
		thin_out(box);
	start = second - second % window_s(box);
	after = windows(box);
	while (after && start_s(box, after - 1) > start)
		after--;
	if (!after || start_s(box, after - 1) != start)
		insert(box, after++, start, atomic_load_explicit(&box->ahead_ns, relaxed));
	atomic_fetch_add_explicit(state->seq, 1, memory_order_acq_rel);
	return &box->window[after - 1];
}

/* The window of a time of the GPU's clock; of what cannot be a Unix time the nearest that can. */
static uint64_t real_ns_of(const struct union_state *state, uint64_t gpu_ns)
{
	uint64_t real = gpu_ns + (uint64_t)atomic_load_explicit(&state->box->ahead_ns, relaxed);
	uint64_t most = UINT32_MAX * NS_A_SECOND;

	return (int64_t)real < 0 ? 0 : real > most ? most : real;
}

/* A time that had not counted yet. It may lie in more than one window. */
static void count(struct union_state *state, uint64_t start_ns, uint64_t stop_ns)
{
	uint64_t from = real_ns_of(state, start_ns), to = real_ns_of(state, stop_ns);

	while (from < to) {
		struct box_union_window *window =
		    find_window(state, (uint32_t)(from / NS_A_SECOND));
		uint64_t length_ns = window_s(state->box) * NS_A_SECOND;
		uint64_t end =
		    atomic_load_explicit(&window->start_s, relaxed) * NS_A_SECOND + length_ns;
		uint64_t part = (to < end ? to : end) - from;
		uint64_t busy = atomic_load_explicit(&window->busy_ns, relaxed);
		/* The clocks are adjusted now and then, so there may be too little. */
		uint64_t room = length_ns - busy;

		atomic_store_explicit(&window->busy_ns, busy + (part < room ? part : room),
		                      relaxed);
		owned_add(&state->box->busy_ns, part);
		from += part;
	}
}

static void forget_gap(struct union_state *state, unsigned index)
{
	state->gaps--;
	memmove(&state->gap[index], &state->gap[index + 1],
	        (state->gaps - index) * sizeof(*state->gap));
}

static void insert_gap(struct union_state *state, unsigned index, struct union_gap gap)
{
	if (state->gaps == UNION_GAPS) {
		if (!index)
			return;
		forget_gap(state, 0);
		index--;
	}
	memmove(&state->gap[index + 1], &state->gap[index],
	        (state->gaps - index) * sizeof(*state->gap));
	state->gap[index] = gap;
	state->gaps++;
}

/* Counts what of the gaps lies within that time, and closes it. */
static void close_gaps(struct union_state *state, uint64_t start_ns, uint64_t stop_ns)
{
	for (unsigned i = state->gaps; i-- > 0 && state->gap[i].end_ns > start_ns;) {
		struct union_gap gap = state->gap[i];
		uint64_t from = gap.start_ns > start_ns ? gap.start_ns : start_ns;
		uint64_t to = gap.end_ns < stop_ns ? gap.end_ns : stop_ns;

		if (from >= to)
			continue;
		count(state, from, to);
		if (gap.start_ns < from && to < gap.end_ns) {
			state->gap[i].start_ns = to;
			insert_gap(state, i, (struct union_gap){ gap.start_ns, from });
		} else if (gap.start_ns < from) {
			state->gap[i].end_ns = from;
		} else if (to < gap.end_ns) {
			state->gap[i].start_ns = to;
		} else {
			forget_gap(state, i);
		}
	}
}

void union_add(struct union_state *state, uint64_t start_ns, uint64_t stop_ns)
{
	struct box_union_window *window =
	    find_window(state, (uint32_t)(real_ns_of(state, stop_ns - 1) / NS_A_SECOND));

	add_to_count(&window->operations, 1);
	atomic_store_explicit(&window->ahead_ns,
	                      atomic_load_explicit(&state->box->ahead_ns, relaxed), relaxed);
	owned_add(&state->box->operations, 1);
	close_gaps(state, start_ns, stop_ns);
	if (stop_ns <= state->end_ns)
		return;
	if (start_ns > state->end_ns)
		insert_gap(state, state->gaps, (struct union_gap){ state->end_ns, start_ns });
	count(state, start_ns > state->end_ns ? start_ns : state->end_ns, stop_ns);
	state->end_ns = stop_ns;
}

void union_lose(struct union_state *state, uint64_t real_ns, uint32_t operations)
{
	if (!operations)
		return;
	add_to_count(&find_window(state, (uint32_t)(real_ns / NS_A_SECOND))->lost, operations);
	owned_add(&state->box->lost, operations);
}

void union_init(struct union_state *state, struct box_union *box, _Atomic uint32_t *seq,
                unsigned gpu)
{
	memset(state, 0, sizeof(*state));
	state->box = box;
	state->seq = seq;
	box->gpu = gpu;
	atomic_store_explicit(&box->window_s, BOX_UNION_S, relaxed);
	atomic_store_explicit(&box->used, 1, memory_order_release);
}

void union_set_clock(struct union_state *state, uint64_t real_ns, int64_t ahead_ns)
{
	struct box_union *box = state->box;
	uint32_t count = windows(box);
	uint64_t now_s = real_ns / NS_A_SECOND;

	atomic_store_explicit(&box->ahead_ns, ahead_ns, relaxed);
	if (count && now_s + CLOCK_BACK_WINDOWS * window_s(box) < start_s(box, count - 1))
		atomic_store_explicit(&box->windows, 0, relaxed);
}

int64_t union_ahead_at(const struct box_union *box, uint64_t gpu_ns)
{
	uint32_t low = 0, high = windows(box);

	if (!high)
		return atomic_load_explicit(&box->ahead_ns, relaxed);
	/* The last window that had begun by then, or the first of all. */
	while (high - low > 1) {
		uint32_t middle = low + (high - low) / 2;
		int64_t ahead = atomic_load_explicit(&box->window[middle].ahead_ns, relaxed);
		int64_t began = (int64_t)(start_s(box, middle) * NS_A_SECOND) - ahead;

		if (began <= (int64_t)gpu_ns)
			low = middle;
		else
			high = middle;
	}
	return atomic_load_explicit(&box->window[low].ahead_ns, relaxed);
}
