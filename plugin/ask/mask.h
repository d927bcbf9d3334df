/* SPDX-License-Identifier: Apache-2.0 */
/* ask/mask.h - whether NCCL tells us of its operations at present, and of how many it tells all.
 *
 * Brings the site's kill switch, its list of NCCL versions and the budget together in NCCL's
 * activation mask, and keeps the box's account of the time in which less was measured.
 *
 * The mask is one integer in libnccl for the whole process. A process may have more than one
 * libnccl (one is linked into a framework). The mask is written only while a communicator of that
 * libnccl lives, and only when something changes, so that a value which somebody else has set since
 * (NCCL's RAS client sets the mask, too) stays. While it samples, the hot path writes the mask of
 * one libnccl (hot/sampling.h), and such a store may come after a change here; the next rounds look
 * for that and put it right.
 *
 * All functions want the inspector's lock, except those that only ask. Times are CLOCK_MONOTONIC,
 * in ns.
 */
#ifndef NCCL_INSPECTOR_ASK_MASK_H
#define NCCL_INSPECTOR_ASK_MASK_H

#include "ask/budget.h"
#include "ask/killswitch.h"
#include "box/box.h"
#include "config.h"
#include "hot/state.h"

#define MASK_MESSAGE_BYTES 256u
#define MASK_LIBRARIES 8u /* at a time */

/* One libnccl with living communicators. */
struct mask_library {
	int *nccl_mask;
	unsigned comms; /* living; 0: there is no such library */
	int wanted;     /* what we want of the mask, kernel events and all */
	int before;     /* while silent: what the mask was, and will be again */
	unsigned watch; /* rounds in which late stores are looked for */
};

struct mask {
	struct track *track;
	struct box_header *header;
	struct killswitch killswitch;
	struct budget budget;
	struct mask_library library[MASK_LIBRARIES];
	unsigned current;  /* the one whose mask the hot path samples with; MASK_LIBRARIES: none */
	uint64_t round_ns; /* time is accounted for up to then, while a communicator lives */
	uint64_t own_ns;   /* CPU time of the beat's thread up to then */
	uint64_t said_ns;  /* when there was last a message about the budget; 0: never */
	char message[MASK_MESSAGE_BYTES];
};

/* Once, after track_init and identity_fill: `track` and its box's header must be complete. */
void mask_init(struct mask *mask, const struct config *config, struct track *track);

/* Whether this NCCL is never to be measured: the site says so, or it is RCCL. Any thread. */
bool mask_is_denied(const struct mask *mask);

/* Whether nothing is measured at present. Any thread. */
bool mask_is_silent(const struct mask *mask);

/* A communicator comes, with the address of its NCCL's mask and the events that we want. Returns
 * the number of its library, which is the current one from now on; MASK_LIBRARIES if there are too
 * many: then its mask is left alone. */
unsigned mask_begin(struct mask *mask, int *nccl_mask, int wanted, uint64_t now_ns);

/* The events that we want of a library have changed. */
void mask_want(struct mask *mask, unsigned library, int wanted);

/* A communicator of a library goes; with the last one its mask is not ours any more. Returns how
 * many of that library are left. */
unsigned mask_end(struct mask *mask, unsigned library, uint64_t now_ns);

/* About once a second, by the beat. `own_ns`: CPU time of its thread so far. box_header.hot_ns must
 * be up to date. */
void mask_round(struct mask *mask, uint64_t now_ns, uint64_t own_ns);

/* Takes out what is to be logged, "" for nothing. The caller logs it when it has let go of the
 * lock. */
void mask_take_message(struct mask *mask, char message[MASK_MESSAGE_BYTES]);

#endif
