/* SPDX-License-Identifier: Apache-2.0 */
/* base/number.h - numbers and pieces of text into a buffer, without printf, which is too slow for
 * every operation.
 *
 * The caller has seen to the room. Each function returns the end of what it wrote; no '\0' follows.
 */
#ifndef NCCL_INSPECTOR_BASE_NUMBER_H
#define NCCL_INSPECTOR_BASE_NUMBER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define PUT_U64_ROOM 20u /* of the longest number */

/* A string literal. */
#define PUT_LITERAL(to, literal) put_bytes(to, literal, sizeof(literal) - 1)

/* `length` bytes. */
static inline char *put_bytes(char *to, const char *from, size_t length)
{
	memcpy(to, from, length);
	return to + length;
}

/* Two digits of a value below 100. Returns nothing. */
static inline void put_pair(char *to, uint32_t value)
{
	static const char pairs[] = "0001020304050607080910111213141516171819"
				    "2021222324252627282930313233343536373839"
				    "4041424344454647484950515253545556575859"
				    "6061626364656667686970717273747576777879"
				    "8081828384858687888990919293949596979899";

	memcpy(to, pairs + value * 2, 2);
}

/* How many digits a number has: its bits times log10(2), and one more where that power of ten is
 * reached. */
static inline unsigned digits_of(uint64_t value)
{
	static const uint64_t powers[] = {
		1u,
		10u,
		100u,
		1000u,
		10000u,
		100000u,
		1000000u,
		10000000u,
		100000000u,
		1000000000u,
		10000000000u,
		100000000000u,
		1000000000000u,
		10000000000000u,
		100000000000000u,
		1000000000000000u,
		10000000000000000u,
		100000000000000000u,
		1000000000000000000u,
		10000000000000000000u,
	};
	unsigned about = (64u - (unsigned)__builtin_clzll(value | 1)) * 1233u >> 12;

	return about + (value >= powers[about]) + !value;
}

/* A number, at most PUT_U64_ROOM bytes. */
static inline char *put_u64(char *to, uint64_t value)
{
	char *end = to + digits_of(value), *at = end;

	while (value >= 100) {
		at -= 2;
		put_pair(at, (uint32_t)(value % 100));
		value /= 100;
	}
	if (value >= 10)
		put_pair(at - 2, (uint32_t)value);
	else
		*--at = (char)('0' + value);
	return end;
}

/* A number with its sign, at most PUT_U64_ROOM bytes. */
static inline char *put_i64(char *to, int64_t value)
{
	if (value < 0) {
		*to++ = '-';
		return put_u64(to, 0 - (uint64_t)value);
	}
	return put_u64(to, (uint64_t)value);
}

/* A number with six decimals, rounded; 0 for a negative value or NaN, at most 1e12. */
static inline char *put_micro(char *to, double value)
{
	double limited = value > 0 ? value < 1e12 ? value : 1e12 : 0;
	uint64_t micro = (uint64_t)(limited * 1e6 + 0.5);
	uint32_t rest = (uint32_t)(micro % 1000000u);

	to = put_u64(to, micro / 1000000u);
	*to++ = '.';
	put_pair(to, rest / 10000u);
	put_pair(to + 2, rest / 100u % 100u);
	put_pair(to + 4, rest % 100u);
	return to + 6;
}

#define PUT_DOUBLE_ROOM 320u /* of the longest one: "%.3f" of the largest double */

/* Numbers as printf writes them by "%.17g" and "%.3f", at most PUT_DOUBLE_ROOM bytes. Ten times as
 * fast as printf for those that metrics have: integers, and fractions of few binary digits. Others
 * go to printf itself, whose decimal point is that of the calling thread's locale. */
char *put_17g(char *to, double value);
char *put_3f(char *to, double value);

#endif
