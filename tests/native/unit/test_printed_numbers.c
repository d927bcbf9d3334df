/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers as printf writes them. */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/number.h"
#include "prom/rounding.h"
#include "tap.h"

static unsigned long wrong, compared;

static void compare(double value)
{
	char want[PUT_DOUBLE_ROOM], got[PUT_DOUBLE_ROOM + 1];
	static const char *const formats[] = { "%.17g", "%.3f" };

	for (unsigned i = 0; i < 2; i++) {
		memset(got, '#', sizeof(got));
		char *end = i ? put_3f(got, value) : put_17g(got, value);

		*end = '\0';
		snprintf(want, sizeof(want), i ? "%.3f" : "%.17g", value);
		compared++;
		if (!strcmp(want, got) && end < got + PUT_DOUBLE_ROOM)
			continue;
		if (!wrong++)
			printf("# %a with %s: want %s, got %s\n", value, formats[i], want, got);
	}
}

static void all_equal(const char *what)
{
	ok(!wrong && compared, "%s (%lu numbers)", what, compared);
	wrong = compared = 0;
}

static uint64_t next_random(void)
{
	static uint64_t state = 88172645463325252u;

	state ^= state << 13;
	state ^= state >> 7;
	return state ^= state << 17;
}

static void test_counters(void)
{
	for (uint64_t i = 0; i < 40000; i++)
		compare((double)i);
	for (double power = 1; power < 1e24; power *= 10)
		for (int i = -5; i <= 5; i++)
			compare(power + i);
	for (unsigned bits = 0; bits < 64; bits++)
		for (int i = -3; i <= 3; i++)
			compare((double)(1ull << bits) + i);
	for (int i = 0; i < 40000; i++)
		compare((double)(next_random() >> (next_random() % 64)));
	all_equal("integers");
}

static void test_seconds(void)
{
	for (uint64_t i = 0; i < 40000; i++)
		compare((double)i / 1024);
	for (int i = 0; i < 40000; i++)
		compare(rounding_seconds(next_random() >> (next_random() % 64)));
	all_equal("steps of 2^-10");
}

static void test_means(void)
{
	for (int exponent = -40; exponent < 60; exponent++)
		for (int mantissa = 256; mantissa < 2048; mantissa++)
			compare(ldexp(mantissa, exponent - 9));
	for (int i = 0; i < 40000; i++)
		compare(rounding_binary(ldexp((double)next_random(), -(int)(next_random() % 96)),
		                        9 + 2 * (i & 1)));
	all_equal("numbers of few binary digits");
}

static void test_times(void)
{
	for (uint64_t ns = 1700000000000000000u; ns < 1700000000500000000u; ns += 19999)
		compare((double)ns / 1e9);
	for (unsigned i = 0; i < 16000; i++) /* the middle of two thousandths: to the even one */
		compare(1000 + (double)i / 16);
	for (double value = 0.5; value < 1e18; value *= 1.0009765625)
		compare(value);
	compare(nextafter(2, 1));
	compare(1999999999.9995);
	compare(999.9996);
	all_equal("times of day, and halves of thousandths");
}

static void test_any_double(void)
{
	double value;

	for (int i = 0; i < 60000; i++) {
		uint64_t bits = next_random();

		memcpy(&value, &bits, sizeof(value));
		compare(value);
		bits = (bits & ((UINT64_C(1) << 52) - 1)) | (1023 - 30 + next_random() % 90)
		                                                << 52; /* 2^-30 to 2^60 */
		memcpy(&value, &bits, sizeof(value));
		compare(value);
	}
	compare(-0.0);
	compare(-1);
	compare(NAN);
	compare(INFINITY);
	compare(-INFINITY);
	compare(DBL_MIN);
	compare(DBL_MAX);
	compare(-DBL_MAX);
	compare(DBL_TRUE_MIN);
	compare(1e17);
	compare(nextafter(1e17, 0));
	compare(1e-4);
	compare(nextafter(1e-4, 0));
	compare(ldexp(1, -13));
	compare(ldexp(1, -14));
	all_equal("any number at all");
}

int main(void)
{
	test_counters();
	test_seconds();
	test_means();
	test_times();
	test_any_double();
	return done_testing();
}
