/* SPDX-License-Identifier: Apache-2.0 */
/* hot/atomics.h - figures that only one thread writes at a time, and others read.
 *
 * A load and a store are cheaper than an atomic addition, and enough where nobody else writes
 * meanwhile. All of them are relaxed.
 */
#ifndef NCCL_INSPECTOR_HOT_ATOMICS_H
#define NCCL_INSPECTOR_HOT_ATOMICS_H

#include <stdatomic.h>
#include <stdint.h>

/* Adds `value`. */
static inline void owned_add(_Atomic uint64_t *figure, uint64_t value)
{
	atomic_store_explicit(figure, atomic_load_explicit(figure, memory_order_relaxed) + value,
	                      memory_order_relaxed);
}

/* Sets those bits. */
static inline void owned_or(_Atomic uint64_t *figure, uint64_t bits)
{
	atomic_store_explicit(figure, atomic_load_explicit(figure, memory_order_relaxed) | bits,
	                      memory_order_relaxed);
}

/* Makes it `value` if that is smaller, or if it is 0, which means "none yet". */
static inline void owned_lower(_Atomic uint64_t *figure, uint64_t value)
{
	if (atomic_load_explicit(figure, memory_order_relaxed) - 1 >= value)
		atomic_store_explicit(figure, value, memory_order_relaxed);
}

/* Makes it `value` if that is larger. */
static inline void owned_raise(_Atomic uint64_t *figure, uint64_t value)
{
	if (atomic_load_explicit(figure, memory_order_relaxed) < value)
		atomic_store_explicit(figure, value, memory_order_relaxed);
}

/* Other threads see the stores before it before those after it. Release stores in its place would
 * be dozens, for each of those after it: what follows a single one may be seen before it. TSan does
 * not know fences of threads; all figures are atomic, so it needs no such fence to find no race,
 * but its program must have the order, too: of the compiler here, for x86 keeps that of stores. */
static inline void order_stores(void)
{
#ifdef __SANITIZE_THREAD__
	atomic_signal_fence(memory_order_seq_cst);
#else
	atomic_thread_fence(memory_order_release);
#endif
}

/* Fetches a line of the cache that is about to be written. The compiler's own prefetch asks for a
 * copy to read only, unless it may assume a processor younger than 2014. Older processors ignore
 * it. */
static inline void prefetch_to_write(const void *line)
{
#if defined(__x86_64__)
	__asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
	__builtin_prefetch(line, 1);
#endif
}

#endif
