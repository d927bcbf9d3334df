/* SPDX-License-Identifier: Apache-2.0 */
/* nothing.h - what a benchmark says to the profiler that does nothing, found with dlsym(). */
#ifndef NOTHING_H
#define NOTHING_H

#include <stdint.h>

/* To be called before init: the mask to ask for, and the types of event that get a handle. */
void nothing_answer(int mask, uint64_t types);

#endif
