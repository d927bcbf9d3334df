/* SPDX-License-Identifier: Apache-2.0 */
#include "pending.h"

#include <stdio.h>
#include <stdlib.h>

static bool is_before(const struct pending_event *one, const struct pending_event *other)
{
	if (one->told_ns != other->told_ns)
		return one->told_ns < other->told_ns;
	return one->number < other->number;
}

static void grow(struct pending *pending)
{
	pending->room = pending->room ? 2 * pending->room : 256;
	pending->events = realloc(pending->events, pending->room * sizeof(*pending->events));
	if (!pending->events) {
		fprintf(stderr, "no memory for operations in flight\n");
		exit(2);
	}
}

void pending_push(struct pending *pending, int64_t told_ns, struct unit *unit, bool is_end)
{
	struct pending_event event = { told_ns, pending->pushed++, unit, is_end };
	size_t at = pending->count;

	if (at == pending->room)
		grow(pending);
	pending->count++;
	while (at && is_before(&event, &pending->events[(at - 1) / 2])) {
		pending->events[at] = pending->events[(at - 1) / 2];
		at = (at - 1) / 2;
	}
	pending->events[at] = event;
}

const struct pending_event *pending_first(const struct pending *pending)
{
	return pending->count ? &pending->events[0] : NULL;
}

void pending_pop(struct pending *pending)
{
	struct pending_event last = pending->events[--pending->count];
	size_t at = 0, below = 1;

	while (below < pending->count) {
		if (below + 1 < pending->count &&
		    is_before(&pending->events[below + 1], &pending->events[below]))
			below++;
		if (!is_before(&pending->events[below], &last))
			break;
		pending->events[at] = pending->events[below];
		at = below;
		below = 2 * at + 1;
	}
	pending->events[at] = last;
}
