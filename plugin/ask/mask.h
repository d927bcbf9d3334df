/* SPDX-License-Identifier: Apache-2.0 */
/* ask/mask.h - whether NCCL tells us of its operations at present, and of how many it tells the whole story.
 *
 * Brings the site's kill switch, its list of NCCL versions and the guard of the budget together in NCCL's activation
 * mask, and keeps the box's account of the time in which less was measured.
 *
 * The mask is one word of libnccl for the whole process; a process may have more than one libnccl (one is linked into
 * a framework). It is written only while a communicator of that libnccl lives, and when something changes: another
 * one's later word (NCCL's RAS client sets the mask, too) stays. The hot path writes the mask of one of them while it
 * samples (hot/start.c), and a store of it may come late, after the change here; that is looked for in the next rounds, and
 * made good.
 *
 * All functions want the inspector's lock, but for the two that only ask. Times are of CLOCK_MONOTONIC.
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
	uint64_t own_ns;   /* CPU time of the writer's thread up to then */
	uint64_t said_ns;  /* when the guard last said something; 0: never */
	char message[MASK_MESSAGE_BYTES];
};

/* Once, with a track that is set up and a header that has the version, and knows RCCL. */
void mask_init(struct mask *mask, const struct config *config, struct track *track);

/* This NCCL is not to be measured, ever: the site says so, or it is RCCL. */
bool mask_is_denied(const struct mask *mask);

/* Nothing is measured at present. */
bool mask_is_silent(const struct mask *mask);

/* A communicator comes, with the address of its NCCL's mask and what we want of it. Returns the number of the library,
 * which is the current one now; MASK_LIBRARIES when there are too many: its mask is left alone. */
unsigned mask_begin(struct mask *mask, int *nccl_mask, int wanted, uint64_t now_ns);

/* What we want of a library has changed. */
void mask_want(struct mask *mask, unsigned library, int wanted);

/* A communicator of a library goes, and the mask with the last of them. Returns how many of that library are left. */
unsigned mask_end(struct mask *mask, unsigned library, uint64_t now_ns);

/* About once a second; `own_ns`: CPU time of the writer's thread so far. The header's hot_ns must be fresh. */
void mask_round(struct mask *mask, uint64_t now_ns, uint64_t own_ns);

/* What there is to be logged, once: "" for nothing. For the caller to log when it has let go of the lock. */
void mask_take_message(struct mask *mask, char message[MASK_MESSAGE_BYTES]);

#endif
