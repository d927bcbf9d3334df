/* SPDX-License-Identifier: Apache-2.0 */
/* control.h - whether NCCL tells us of its operations at present, and of how many it tells the whole story.
 *
 * Brings the site's kill switch, its list of NCCL versions and the guard of the budget together in NCCL's activation
 * mask, and keeps the box's account of the time in which less was measured.
 *
 * The mask is one word of libnccl for the whole process. It is written only while a communicator lives, and when
 * something changes: another one's later word (NCCL's RAS client sets the mask, too) stays. The hot path writes it
 * while it samples (track.c), and a store of it may come late, after the change here; that is looked for in the next
 * rounds, and made good.
 *
 * All functions want the inspector's lock, but for the two that only ask. Times are of CLOCK_MONOTONIC.
 */
#ifndef NCCL_INSPECTOR_CONTROL_H
#define NCCL_INSPECTOR_CONTROL_H

#include "config.h"
#include "guard.h"
#include "killswitch.h"
#include "track.h"

#define CONTROL_MESSAGE_BYTES 256u

struct control {
	struct track *track;
	struct box_header *header;
	struct killswitch killswitch;
	struct guard guard;
	int before;        /* while silent: what the mask was, and will be again */
	unsigned watch;    /* rounds in which late stores are looked for */
	uint64_t round_ns; /* time is accounted for up to then */
	uint64_t own_ns;   /* CPU time of the writer's thread up to then */
	uint64_t said_ns;  /* when the guard last said something; 0: never */
	char message[CONTROL_MESSAGE_BYTES];
};

/* Once, with a track that is set up and a header that has the version. */
void control_init(struct control *control, const struct config *config, struct track *track);

/* This NCCL is not to be measured, ever. */
bool control_is_denied(const struct control *control);

/* Nothing is measured at present. */
bool control_is_silent(const struct control *control);

/* A communicator comes, with the address of NCCL's mask and what we want of it. */
void control_begin(struct control *control, int *mask, int wanted, uint64_t now_ns);

/* What we want has changed. */
void control_want(struct control *control, int wanted);

/* The last communicator goes, and the mask with it. */
void control_end(struct control *control, uint64_t now_ns);

/* About once a second; `own_ns`: CPU time of the writer's thread so far. The header's hot_ns must be fresh. */
void control_round(struct control *control, uint64_t now_ns, uint64_t own_ns);

/* What there is to be logged, once: "" for nothing. For the caller to log when it has let go of the lock. */
void control_take_message(struct control *control, char message[CONTROL_MESSAGE_BYTES]);

#endif
