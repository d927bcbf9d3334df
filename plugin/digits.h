/* SPDX-License-Identifier: Apache-2.0 */
/* digits.h - numbers and words into a text whose room the caller has seen to: printf is too slow for every operation. */
#ifndef NCCL_INSPECTOR_DIGITS_H
#define NCCL_INSPECTOR_DIGITS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define DIGITS_ROOM 20u /* of the longest number */

/* Each returns the end of what it wrote; no '\0' follows. */
#define DIGITS_WORD(to, literal) digits_bytes(to, literal, sizeof(literal) - 1)

static inline char *digits_bytes(char *to, const char *from, size_t length)
{
	memcpy(to, from, length);
	return to + length;
}

static inline char *digits_u64(char *to, uint64_t value)
{
	static const char pairs[] = "0001020304050607080910111213141516171819"
				    "2021222324252627282930313233343536373839"
				    "4041424344454647484950515253545556575859"
				    "6061626364656667686970717273747576777879"
				    "8081828384858687888990919293949596979899";
	char text[DIGITS_ROOM], *at = text + sizeof(text);

	while (value >= 100) {
		at -= 2;
		memcpy(at, pairs + value % 100 * 2, 2);
		value /= 100;
	}
	if (value >= 10) {
		at -= 2;
		memcpy(at, pairs + value * 2, 2);
	} else {
		*--at = (char)('0' + value);
	}
	return digits_bytes(to, at, (size_t)(text + sizeof(text) - at));
}

static inline char *digits_i64(char *to, int64_t value)
{
	if (value < 0) {
		*to++ = '-';
		return digits_u64(to, 0 - (uint64_t)value);
	}
	return digits_u64(to, (uint64_t)value);
}

/* Six decimals, rounded; 0 for what is negative or no number, cut at 1e12. */
static inline char *digits_micro(char *to, double value)
{
	double limited = value > 0 ? value < 1e12 ? value : 1e12 : 0;
	uint64_t micro = (uint64_t)(limited * 1e6 + 0.5);
	uint32_t rest = (uint32_t)(micro % 1000000u);

	to = digits_u64(to, micro / 1000000u);
	*to++ = '.';
	for (unsigned unit = 100000; unit; unit /= 10)
		*to++ = (char)('0' + rest / unit % 10);
	return to;
}

#endif
