/* SPDX-License-Identifier: Apache-2.0 */
/* nccl/strings.h - NCCL's strings to the numbers of box/box.h, at event time: the strings die with libnccl.
 *
 * They are static storage of libnccl, so an address that was compared once means the same word until libnccl
 * is unloaded: words_forget() comes before the first event of every communicator.
 */
#ifndef NCCL_INSPECTOR_NCCL_STRINGS_H
#define NCCL_INSPECTOR_NCCL_STRINGS_H

#include <stdatomic.h>
#include <stdint.h>

enum words_table { WORDS_FUNC, WORDS_ALGO, WORDS_PROTO, WORDS_DATATYPE, WORDS_TABLES };
#define WORDS_CACHED 16u

/* address << 8 | number. An empty entry is right for NULL. Of a datatype the number is its bytes ^ 1. */
extern _Atomic uint64_t words_cache[WORDS_TABLES][WORDS_CACHED];

void words_forget(void);

/* Compares, and remembers the address. For words_number only. */
uint8_t words_compare(enum words_table table, const char *word);

static inline _Atomic uint64_t *words_place(enum words_table table, uint64_t address)
{
	return &words_cache[table][(address >> 3) % WORDS_CACHED];
}

/* The number of a word; 0: NULL, or not known. */
static inline uint8_t words_number(enum words_table table, const char *word)
{
	uint64_t address = (uintptr_t)word;
	uint64_t number = atomic_load_explicit(words_place(table, address), memory_order_relaxed) ^ address << 8;

	return number < 256 ? (uint8_t)number : words_compare(table, word);
}

/* Bytes of one element. NCCL has no name for ncclUint8 and sends "Unknown": 1. */
static inline unsigned words_bytes(const char *datatype)
{
	return words_number(WORDS_DATATYPE, datatype) ^ 1u;
}

/* The words that NCCL's interface v1 gives as integers: NULL for one that is not known. */
const char *words_v1_func(unsigned number);
const char *words_v1_algo(unsigned number);
const char *words_v1_proto(unsigned number);
const char *words_v1_datatype(unsigned number);

#endif
