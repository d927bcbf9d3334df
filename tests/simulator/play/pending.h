/* SPDX-License-Identifier: Apache-2.0 */
/* pending.h - what NCCL's thread will be told of kernels, in the order of time: a heap. */
#ifndef SIMULATOR_PENDING_H
#define SIMULATOR_PENDING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct unit;

struct pending_event {
	int64_t told_ns;
	uint64_t number; /* among equals the first pushed is the first out */
	struct unit *unit;
	bool is_end;
};

struct pending {
	struct pending_event *events;
	size_t count, room;
	uint64_t pushed;
};

void pending_push(struct pending *pending, int64_t told_ns, struct unit *unit, bool is_end);

/* NULL when there is none; valid until the next push or pop. */
const struct pending_event *pending_first(const struct pending *pending);

void pending_pop(struct pending *pending);

#endif
