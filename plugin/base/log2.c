/* SPDX-License-Identifier: Apache-2.0 */
#include "base/log2.h"

int32_t log2_table[(1u << LOG2_TABLE_BITS) + 1];

/* log2 of 1 + slot / 256, digit by digit: squaring doubles the logarithm, so that a result of 2 or
 * more is a one. */
static int32_t log2_of_slot(unsigned slot)
{
	uint64_t x = (1ull << 31) + ((uint64_t)slot << (31 - LOG2_TABLE_BITS));
	int32_t digits = 0;

	if (slot == 1u << LOG2_TABLE_BITS)
		return LOG2_ONE;
	for (int i = 0; i < 21; i++) {
		x = (x * x) >> 31;
		digits <<= 1;
		if (x >= 1ull << 32) {
			x >>= 1;
			digits |= 1;
		}
	}
	return (digits + 1) >> 1;
}

void log2_init(void)
{
	for (unsigned slot = 0; slot <= 1u << LOG2_TABLE_BITS; slot++)
		log2_table[slot] = log2_of_slot(slot);
}
