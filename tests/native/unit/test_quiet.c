/* SPDX-License-Identifier: Apache-2.0 */
/* What a process reads and writes while it calls nothing of NCCL. */
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "beat/quiet.h"
#include "tap.h"

#define S UINT64_C(1000000000)
#define BEGAN_S 1000u

static struct box box;
static struct quiet quiet;

static void begin(void)
{
	int error;

	memset(&quiet, 0, sizeof(quiet));
	box_open(&box, -1, "0", &error);
}

static void operate(unsigned calls, unsigned ends)
{
	atomic_fetch_add(&box.comms[0].enqueued, calls);
	atomic_fetch_add(&box.comms[0].completed, ends);
}

static void rounds(unsigned from_s, unsigned until_s)
{
	for (unsigned at = from_s; at <= until_s; at++)
		quiet_round(&quiet, &box, (BEGAN_S + at) * S);
}

static double rate_at(unsigned second)
{
	return quiet_rate(&quiet, &box, (BEGAN_S + second) * S);
}

static void save(unsigned megabytes)
{
	static char data[1000000];
	int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);

	for (unsigned i = 0; i < megabytes; i++)
		(void)!write(fd, data, sizeof(data));
	close(fd);
}

static bool about(double value, double wanted)
{
	return value > 0.98 * wanted && value < 1.05 * wanted + 5000;
}

static void test_what_a_quiet_process_writes_is_counted_from_then_on(void)
{
	begin();
	operate(5, 5);
	rounds(0, 9);
	save(50);
	ok(rate_at(9) < 0, "a process that called something 10 s ago is not quiet");
	rounds(10, 19);
	save(30);
	double first = rate_at(20), then = rate_at(30);

	ok(about(first, 3e6), "what it writes from then on is its rate: %.0f", first);
	ok(about(then, 0), "and then what it writes since the last answer: %.0f", then);
	save(200);
	ok(about(rate_at(50), 10e6), "which may be faster than before");
}

static void test_who_calls_or_waits_is_not_quiet(void)
{
	begin();
	rounds(0, 12);
	operate(1, 0);
	rounds(13, 40);
	save(5);
	ok(rate_at(41) < 0, "with an operation in flight there is no rate");
	operate(0, 1);
	rounds(42, 50);
	ok(rate_at(51) < 0, "nor soon after its end");
	rounds(52, 62);
	save(12);
	ok(about(rate_at(63), 1e6), "but later");
	operate(1, 1);
	ok(rate_at(90) < 0, "a call since the last look ends it at once");
}

int main(void)
{
	test_what_a_quiet_process_writes_is_counted_from_then_on();
	test_who_calls_or_waits_is_not_quiet();
	return done_testing();
}
