/* SPDX-License-Identifier: Apache-2.0 */
/* driver.h - of fuzz_events.c: what a call says, taken from the input, and what the plugin has been
 * told so far. */
#ifndef NCCL_INSPECTOR_DRIVER_H
#define NCCL_INSPECTOR_DRIVER_H

#include "bytes.h"
#include "calls.h"
#include "laws.h"

#define GPU_AHEAD_NS 1700000000000000000ull
#define CONTEXTS 160u
#define HANDLES 256u
#define MASKS 10u /* libnccls of one process: more than MASK_LIBRARIES */
struct driver {
	struct bytes in;
	unsigned api;
	int masks[MASKS];
	struct {
		void *context;
		unsigned api;
		uint64_t ops; /* told */
	} comms[CONTEXTS];
	unsigned comm_count;
	void *handles[HANDLES];
	unsigned handle_count;
	struct laws_told told;
};

extern struct driver run;

#define PICK(table, byte) (table)[(byte) % (sizeof(table) / sizeof(*(table)))]

_Noreturn void driver_fail(const char *what);

/* From the input: words of an event; any handle; a time of the GPU, mostly near to now. */
struct calls_words driver_words(void);
void *driver_handle(void);
uint64_t driver_gpu_ns(void);
uint64_t driver_gpu_now(void);

/* A communicator of the input's, and its version; or a context that is none. */
void *driver_context(unsigned *api);

/* Whether the context is of a communicator that has its record yet. */
bool driver_has_record(const void *context);

/* Tells of an event, and notes what it should count as. */
void driver_start(unsigned api, void *context, uint64_t type, void *parent,
                  const struct calls_words *words);

#endif
