/* SPDX-License-Identifier: Apache-2.0 */
/* hot/owner.h - who has something to itself: a thread its ring of slots, a thread the figures of a
 * communicator. */
#ifndef NCCL_INSPECTOR_HOT_OWNER_H
#define NCCL_INSPECTOR_HOT_OWNER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <pthread.h>
#endif

#include "box/box.h"

/* Returns a number that no two living threads have in common, for the price of a register; never 0.
 * The C library gives the number of a thread that has ended to a later one. */
static inline uint64_t owner_id(void)
{
	uint64_t id;

#if defined(__x86_64__)
	__asm__("mov %%fs:0, %0" : "=r"(id));
#elif defined(__aarch64__)
	__asm__("mrs %0, tpidr_el0" : "=r"(id));
#else
	id = (uint64_t)pthread_self();
#endif
	return id;
}

/* The figures of a communicator are added up by one thread at a time: box_comm.busy is odd
 * meanwhile. A thread that finds it odd leaves the operation to the sweep (upkeep/sweep.h).
 *
 * Returns whether the caller has the figures to itself from now on; then it must call comm_leave.
 * Never waits. Any thread. */
static inline bool comm_enter(struct box_comm *comm)
{
	uint32_t busy = atomic_load_explicit(&comm->busy, memory_order_relaxed);

	return !(busy & 1) &&
	       atomic_compare_exchange_strong_explicit(&comm->busy, &busy, busy + 1,
	                                               memory_order_acquire, memory_order_relaxed);
}

/* Gives them back. Only after comm_enter has returned true. */
static inline void comm_leave(struct box_comm *comm)
{
	atomic_store_explicit(&comm->busy,
	                      atomic_load_explicit(&comm->busy, memory_order_relaxed) + 1,
	                      memory_order_release);
}

#endif
