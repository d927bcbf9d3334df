/* SPDX-License-Identifier: Apache-2.0 */
#include "base/number.h"

#include <stdbool.h>
#include <stdio.h>

#define FRACTION_BITS 52
#define DIGITS_17 100000000000000000u /* the least number that 17 digits do not hold */
#define MAX_BINARY_DIGITS 27

/* value = mantissa / 2^binary_digits, mantissa odd. False for 0 and what is negative, subnormal or
 * no number. */
static bool take_apart(double value, uint64_t *mantissa, int *binary_digits)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof(bits));
	unsigned exponent = (unsigned)(bits >> FRACTION_BITS); /* with the sign */

	if (exponent == 0 || exponent >= 0x7ff)
		return false;
	bits = (bits & ((1ull << FRACTION_BITS) - 1)) | 1ull << FRACTION_BITS;
	int zeros = __builtin_ctzll(bits);

	*mantissa = bits >> zeros;
	*binary_digits = 1023 + FRACTION_BITS - (int)exponent - zeros;
	return true;
}

/* digits / 10^decimals; the last digit is not 0. */
static char *add_fraction(char *to, uint64_t digits, unsigned decimals)
{
	unsigned count = digits_of(digits);

	if (count <= decimals) {
		to = PUT_LITERAL(to, "0.");
		memset(to, '0', decimals - count);
		return put_u64(to + (decimals - count), digits);
	}
	char *end = put_u64(to, digits);

	memmove(end - decimals + 1, end - decimals, decimals);
	end[-(int)decimals] = '.';
	return end + 1;
}

char *put_17g(char *to, double value)
{
	/* A binary digit more is a decimal more: n / 2^k is n * 5^k / 10^k. */
	static const uint64_t powers_of_5[MAX_BINARY_DIGITS + 1] = {
		1u,
		5u,
		25u,
		125u,
		625u,
		3125u,
		15625u,
		78125u,
		390625u,
		1953125u,
		9765625u,
		48828125u,
		244140625u,
		1220703125u,
		6103515625u,
		30517578125u,
		152587890625u,
		762939453125u,
		3814697265625u,
		19073486328125u,
		95367431640625u,
		476837158203125u,
		2384185791015625u,
		11920928955078125u,
		59604644775390625u,
		298023223876953125u,
		1490116119384765625u,
		7450580596923828125u,
	};
	uint64_t digits;
	int k;

	if (value == 0 && !__builtin_signbit(value))
		return PUT_LITERAL(to, "0");
	if (take_apart(value, &digits, &k)) {
		if (k <= 0 && value < (double)DIGITS_17)
			return put_u64(to, digits << -k);
		/* Below 10^-4 printf writes an exponent. */
		if (k > 0 && k <= MAX_BINARY_DIGITS &&
		    !__builtin_mul_overflow(digits, powers_of_5[k], &digits) &&
		    digits < DIGITS_17 && digits_of(digits) + 4 > (unsigned)k)
			return add_fraction(to, digits, (unsigned)k);
	}
	return to + snprintf(to, PUT_DOUBLE_ROOM, "%.17g", value);
}

char *put_3f(char *to, double value)
{
	uint64_t mantissa, whole, thousandths, rest, half;
	int k;

	if (!(value >= 1) || !take_apart(value, &mantissa, &k) || k <= 0)
		return to + snprintf(to, PUT_DOUBLE_ROOM, "%.3f", value);
	whole = mantissa >> k;
	rest = (mantissa - (whole << k)) * 1000;
	thousandths = rest >> k;
	rest -= thousandths << k;
	half = 1ull << (k - 1);
	/* As printf: to the nearest, and from the middle to the even one. */
	thousandths += rest > half || (rest == half && thousandths & 1);
	to = put_u64(to, whole + thousandths / 1000);
	*to = '.';
	to[1] = (char)('0' + thousandths % 1000 / 100);
	put_pair(to + 2, (uint32_t)(thousandths % 100));
	return to + 4;
}
