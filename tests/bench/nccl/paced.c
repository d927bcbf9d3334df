/* SPDX-License-Identifier: Apache-2.0 */
/* paced.c - 2,000 operations a second and side, as an application with work of its own has them:
 * between two of them both threads sleep, and the caches belong to others. */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>

#include "bench.h"

#define CHANNELS 16u
#define TICK_NS 250000u /* both sides take turns: 2,000/s each */
#define KERNEL_AFTER_NS 50000u
#define WARM_UP 400u
#define MEASURED_MAX 100000u

static struct player_op op;
static struct side *side_now;
static unsigned number_now, total;
static _Atomic unsigned begun, done; /* operations */
static long app_faults, kernel_faults;

/* Kept, and printed at the end: printing would touch pages of its own. */
static struct {
	const struct side *side;
	uint64_t app, kernel; /* ticks */
} measured[MEASURED_MAX];

static long minor_faults(void)
{
	struct rusage usage;

	getrusage(RUSAGE_THREAD, &usage);
	return usage.ru_minflt;
}

/* Both threads spin, as NCCL's does: a processor that sleeps takes microseconds to be itself again.
 */
static void spin_to(uint64_t ns)
{
	while (now_ns() < ns)
		;
}

static void await(_Atomic unsigned *word, unsigned value)
{
	while (atomic_load_explicit(word, memory_order_acquire) != value)
		;
}

static void *kernel_main(void *unused)
{
	long before = 0;

	(void)unused;
	pin(1);
	for (unsigned i = 0; i < total; i++) {
		await(&begun, i + 1);
		spin_to(now_ns() + KERNEL_AFTER_NS);
		if (i == WARM_UP)
			before = minor_faults();
		uint64_t begin = ticks();

		load_kernel(side_now, &op, number_now);
		if (i >= WARM_UP)
			measured[i - WARM_UP].kernel = ticks() - begin;
		atomic_store_explicit(&done, i + 1, memory_order_release);
	}
	kernel_faults = minor_faults() - before;
	return NULL;
}

static void app_loop(void)
{
	uint64_t due = now_ns();
	long before = 0;

	for (unsigned i = 0; i < total; i++) {
		due += TICK_NS;
		spin_to(due);
		if (i == WARM_UP)
			before = minor_faults();
		if (i % 2 == 0)
			side_now = &sides[coin()];
		else
			side_now = side_now == &sides[OURS] ? &sides[NOTHING] : &sides[OURS];
		number_now = i / 2;
		op = load_op(number_now, CHANNELS);
		uint64_t begin = ticks();

		player_enqueue(load_comm(side_now, number_now), &op);
		uint64_t spent = ticks() - begin;

		if (i >= WARM_UP) {
			measured[i - WARM_UP].side = side_now;
			measured[i - WARM_UP].app = spent;
		}
		told_ours += side_now == &sides[OURS];
		atomic_store_explicit(&begun, i + 1, memory_order_release);
		await(&done, i + 1);
	}
	app_faults = minor_faults() - before;
}

void measure_paced(unsigned rounds)
{
	pthread_t thread;

	if (2 * rounds > MEASURED_MAX)
		fail("too many rounds");
	memset(measured, 0xff, sizeof(measured)); /* touches every page */
	total = WARM_UP + 2 * rounds;
	pin(0);
	if (pthread_create(&thread, NULL, kernel_main, NULL))
		fail("no thread");
	app_loop();
	pthread_join(thread, NULL);
	for (unsigned i = 0; i < total - WARM_UP; i++) {
		const char *word = measured[i].side->word;

		say("paced_app", word, (double)measured[i].app * ns_per_tick());
		say("paced_kernel", word, (double)measured[i].kernel * ns_per_tick());
	}
	say("faults", "ours", (double)(app_faults + kernel_faults));
}
