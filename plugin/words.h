/* SPDX-License-Identifier: Apache-2.0 */
/* words.h - NCCL's strings to the numbers of box.h, at event time: the strings die with libnccl.
 *
 * They are static storage of libnccl, so an address that was compared once means the same word until libnccl
 * is unloaded: words_forget() comes before the first event of every communicator.
 */
#ifndef NCCL_INSPECTOR_WORDS_H
#define NCCL_INSPECTOR_WORDS_H

#include <stdatomic.h>
#include <stdint.h>

enum words_table { WORDS_FUNC, WORDS_ALGO, WORDS_PROTO, WORDS_DATATYPE, WORDS_TABLES };
#define WORDS_CACHED 16u

/* address << 8 | number; 0: empty, and right for NULL in every table but the last. */
extern _Atomic uint64_t words_cache[WORDS_TABLES][WORDS_CACHED];

void words_forget(void);

/* Compares, and remembers the address. For words_number only. */
uint8_t words_compare(enum words_table table, const char *word);

/* The number of a word; 0: NULL, or not known. Of a datatype: the bytes of one element; NCCL has no name for
 * ncclUint8 and sends "Unknown": 1. */
static inline uint8_t words_number(enum words_table table, const char *word)
{
	uint64_t address = (uintptr_t)word;
	uint64_t entry = atomic_load_explicit(&words_cache[table][(address >> 2 ^ address >> 6) % WORDS_CACHED],
					      memory_order_relaxed);

	return entry && entry >> 8 == address ? (uint8_t)entry : words_compare(table, word);
}

/* The words that NCCL's interface v1 gives as integers: NULL for one that is not known. */
const char *words_v1_func(unsigned number);
const char *words_v1_algo(unsigned number);
const char *words_v1_proto(unsigned number);
const char *words_v1_datatype(unsigned number);

#endif
