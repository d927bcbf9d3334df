/* SPDX-License-Identifier: Apache-2.0 */
#include "json/comms.h"

#include <stdlib.h>

#define relaxed memory_order_relaxed
#define MOST_WAITING 4096u /* about 3 MB */
#define KEPT 2u            /* an operation may end while its record goes to the next */

void jsoncomms_add(struct jsoncomms *comms, struct json_comm *comm)
{
	if (!comm)
		return;
	if (comm->comm >= BOX_COMMS ||
	    atomic_load_explicit(&comms->waiting, relaxed) >= MOST_WAITING) {
		free(comm);
		return;
	}
	atomic_fetch_add_explicit(&comms->waiting, 1, relaxed);
	comm->next = atomic_load_explicit(&comms->incoming, relaxed);
	while (!atomic_compare_exchange_weak_explicit(&comms->incoming, &comm->next, comm,
	                                              memory_order_release, relaxed))
		;
}

static const struct json_comm *find_known(const struct jsoncomms *comms, unsigned comm,
                                          uint32_t generation)
{
	for (const struct json_comm *at = comms->known[comm]; at; at = at->next)
		if (at->generation == generation)
			return at;
	return NULL;
}

/* In the place of the one without a name, if that is there. */
static void keep(struct json_comm **known, struct json_comm *comm)
{
	struct json_comm **at = known;

	while (*at && (*at)->generation != comm->generation)
		at = &(*at)->next;
	if (*at) {
		struct json_comm *old = *at;

		comm->next = old->next;
		*at = comm;
		free(old);
	} else {
		comm->next = *known;
		*known = comm;
	}
}

static void take_in(struct jsoncomms *comms)
{
	struct json_comm *at =
	    atomic_exchange_explicit(&comms->incoming, NULL, memory_order_acquire);
	struct json_comm *in_order = NULL;

	while (at) {
		struct json_comm *next = at->next;

		at->next = in_order;
		in_order = at;
		at = next;
	}
	while (in_order) {
		struct json_comm *next = in_order->next;

		keep(&comms->known[in_order->comm], in_order);
		atomic_fetch_sub_explicit(&comms->waiting, 1, relaxed);
		in_order = next;
	}
}

const struct json_comm *jsoncomms_find(struct jsoncomms *comms, unsigned comm, uint32_t generation)
{
	const struct json_comm *found;

	if (comm >= BOX_COMMS)
		return NULL;
	found = find_known(comms, comm, generation);
	if (found && !found->unnamed)
		return found;
	take_in(comms);
	found = find_known(comms, comm, generation);
	return found && !found->unnamed ? found : NULL;
}

void jsoncomms_trim(struct jsoncomms *comms)
{
	take_in(comms);
	for (unsigned i = 0; i < BOX_COMMS; i++) {
		struct json_comm **at = &comms->known[i];

		for (unsigned kept = 0; *at && kept < KEPT; kept++)
			at = &(*at)->next;
		while (*at) {
			struct json_comm *old = *at;

			*at = old->next;
			free(old);
		}
	}
}
