/* SPDX-License-Identifier: Apache-2.0 */
/* hooks.h - what stands between the plugin and the C library: a program's own functions come before
 * the library's, so this is a slow disk, a clock that is set, a lack of memory, and a count of
 * calls. */
#ifndef DEFECTS_HOOKS_H
#define DEFECTS_HOOKS_H

#include <stdint.h>

/* Each 0 for "as it is". Except for the clock they concern threads other than the main one only. */
struct hooks {
	_Atomic long write_ms;        /* each write(2) takes that long; -1: it never returns */
	_Atomic long short_of_memory; /* malloc and its like return NULL */
	_Atomic long clock_step_s;    /* added to the time of day */
	_Atomic long mkdir_race; /* somebody else makes the directory right before; any thread */
	/* What was seen of other threads. */
	_Atomic uint64_t writes, writes_stuck;
};
extern struct hooks hooks;

/* Of the calling thread, since it began. */
struct hook_counts {
	uint64_t locks, clocks;
};
struct hook_counts hooks_counts(void);

/* Before the first thread. */
void hooks_open(void);

#endif
