/* SPDX-License-Identifier: Apache-2.0 */
/* nccl/strings.h - NCCL's strings to the numbers of box/box.h, when an event comes: the strings die
 * with libnccl.
 *
 * They are static storage of libnccl, so an address that was compared once means the same string
 * until libnccl is unloaded: strings_forget() must come before the first event of every
 * communicator. Any thread.
 */
#ifndef NCCL_INSPECTOR_NCCL_STRINGS_H
#define NCCL_INSPECTOR_NCCL_STRINGS_H

#include <stdatomic.h>
#include <stdint.h>

enum strings_table { STRINGS_FUNC, STRINGS_ALGO, STRINGS_PROTO, STRINGS_DATATYPE, STRINGS_TABLES };
#define STRINGS_CACHED 16u

/* address << 8 | number. An empty entry is right for NULL. Of a datatype the number is its bytes ^
 * 1. */
extern _Atomic uint64_t strings_cache[STRINGS_TABLES][STRINGS_CACHED];

/* Forgets all addresses. */
void strings_forget(void);

/* Compares, and remembers the address. For strings_number only. */
uint8_t strings_compare(enum strings_table table, const char *string);

/* Where an address is remembered. */
static inline _Atomic uint64_t *strings_place(enum strings_table table, uint64_t address)
{
	return &strings_cache[table][(address >> 3) % STRINGS_CACHED];
}

/* Returns the number of a string: enum box_func, box_algo, box_proto; 0: NULL, or not known. */
static inline uint8_t strings_number(enum strings_table table, const char *string)
{
	uint64_t address = (uintptr_t)string;
	uint64_t number =
	    atomic_load_explicit(strings_place(table, address), memory_order_relaxed) ^ address
	                                                                                    << 8;

	return number < 256 ? (uint8_t)number : strings_compare(table, string);
}

/* Returns the bytes of one element. NCCL has no name for ncclUint8 and sends "Unknown": 1. */
static inline unsigned strings_datatype_bytes(const char *datatype)
{
	return strings_number(STRINGS_DATATYPE, datatype) ^ 1u;
}

/* NCCL's interface v1 gives integers in place of strings. Each returns the string; NULL for a
 * number that is not known. */
const char *strings_v1_func(unsigned number);
const char *strings_v1_algo(unsigned number);
const char *strings_v1_proto(unsigned number);
const char *strings_v1_datatype(unsigned number);

#endif
