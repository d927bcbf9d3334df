/* SPDX-License-Identifier: Apache-2.0 */
/* bytes.h - the fuzzer's input, taken piece by piece; zeros after its end. */
#ifndef NCCL_INSPECTOR_BYTES_H
#define NCCL_INSPECTOR_BYTES_H

#include <stddef.h>
#include <stdint.h>

struct bytes {
	const uint8_t *at, *end;
};

static inline uint8_t bytes_u8(struct bytes *bytes)
{
	return bytes->at < bytes->end ? *bytes->at++ : 0;
}

static inline uint64_t bytes_u64(struct bytes *bytes)
{
	uint64_t value = 0;

	for (unsigned i = 0; i < 8; i++)
		value = value << 8 | bytes_u8(bytes);
	return value;
}

/* Powers of two, their neighbours, and any number now and then. */
static inline uint64_t bytes_odd(struct bytes *bytes)
{
	uint8_t kind = bytes_u8(bytes);

	if (kind >= 0xf8)
		return bytes_u64(bytes);
	return (1ull << (kind & 63)) - 1 + (kind >> 6);
}

#endif
