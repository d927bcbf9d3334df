/* SPDX-License-Identifier: Apache-2.0 */
/* hot/owner.h - a word that no two living threads have in common, for the price of a register. */
#ifndef NCCL_INSPECTOR_HOT_OWNER_H
#define NCCL_INSPECTOR_HOT_OWNER_H

#include <stdint.h>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <pthread.h>
#endif

/* Never 0. */
static inline uint64_t thread_word(void)
{
	uint64_t word;

#if defined(__x86_64__)
	__asm__("mov %%fs:0, %0" : "=r"(word));
#elif defined(__aarch64__)
	__asm__("mrs %0, tpidr_el0" : "=r"(word));
#else
	word = (uint64_t)pthread_self();
#endif
	return word;
}

#endif
