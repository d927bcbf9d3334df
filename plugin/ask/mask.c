/* SPDX-License-Identifier: Apache-2.0 */
#include "ask/mask.h"

#include <stdio.h>
#include <string.h>

#include "ask/deny.h"
#include "hot/clockmix.h"
#include "hot/follow.h"
#include "nccl/abi.h"

#define relaxed memory_order_relaxed
/* A store is late by less than the hot path takes, unless its thread was preempted just there. */
#define WATCH_ROUNDS 10u
#define SAY_PAUSE_NS 60000000000ull

static enum box_silent silence_of(const struct mask *mask)
{
	return (enum box_silent)atomic_load_explicit(&mask->header->silent, relaxed);
}

bool mask_is_denied(const struct mask *mask)
{
	return silence_of(mask) >= BOX_SILENT_DENIED;
}

bool mask_is_silent(const struct mask *mask)
{
	return silence_of(mask) != BOX_SILENT_NOT;
}

/* Whether it is one of the two values that the hot path writes. */
static bool is_ours(const struct mask_library *library, int value)
{
	return value == library->wanted || value == (library->wanted & ~ABI_DETAIL);
}

static bool has_comms(const struct mask *mask)
{
	return mask->current < MASK_LIBRARIES;
}

static void say(struct mask *mask, const char *text)
{
	snprintf(mask->message, sizeof(mask->message), "%s", text);
}

void mask_init(struct mask *mask, const struct config *config, struct track *track)
{
	char bad[64];

	memset(mask, 0, sizeof(*mask));
	mask->track = track;
	mask->header = track->box->header;
	mask->current = MASK_LIBRARIES;
	killswitch_open(&mask->killswitch, config->control_dir);
	budget_init(&mask->budget, config->budget_ppm);
	atomic_store(&mask->header->sampling, 1);
	if (mask_is_denied(mask)) {
		track_follow(track, false);
		say(mask, "RCCL is not supported yet: nothing is measured");
		return;
	}
	if (deny_lists(config->deny_nccl, mask->header->nccl_version, bad, sizeof(bad))) {
		track_follow(track, false);
		atomic_store(&mask->header->silent, BOX_SILENT_DENIED);
		say(mask, "this NCCL is on the site's list NCCL_INSPECTOR_DENY_NCCL: nothing is "
		          "measured");
	} else if (*bad) {
		snprintf(mask->message, sizeof(mask->message),
		         "NCCL_INSPECTOR_DENY_NCCL: '%s' is neither a version nor a range", bad);
	}
}

static void begin_budget(struct mask *mask, uint64_t now_ns)
{
	budget_begin(&mask->budget, now_ns, atomic_load(&mask->header->hot_ns), mask->own_ns);
}

static void silence(struct mask_library *library)
{
	int had = __atomic_exchange_n(library->nccl_mask, 0, __ATOMIC_RELAXED);

	library->before = is_ours(library, had) ? library->wanted : had;
	library->watch = WATCH_ROUNDS;
}

static void fall_silent(struct mask *mask)
{
	/* From here on every thread writes at most once more. */
	atomic_store(&mask->track->sample_every, 1);
	for (unsigned i = 0; i < MASK_LIBRARIES; i++)
		if (mask->library[i].comms)
			silence(&mask->library[i]);
	track_follow(mask->track, false);
	atomic_store(&mask->header->silent, BOX_SILENT_DISABLED);
	say(mask, "disabled by the site: nothing is measured until it is enabled again");
}

static void speak(struct mask_library *library)
{
	int nothing = 0;

	__atomic_compare_exchange_n(library->nccl_mask, &nothing, library->before, false,
	                            __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	library->watch = WATCH_ROUNDS;
}

static void begin_again(struct mask *mask, uint64_t now_ns)
{
	atomic_store(&mask->track->sample_every, mask->budget.every);
	track_follow(mask->track, true);
	for (unsigned i = 0; i < MASK_LIBRARIES; i++)
		if (mask->library[i].comms)
			speak(&mask->library[i]);
	atomic_store(&mask->header->silent, BOX_SILENT_NOT);
	begin_budget(mask, now_ns);
	say(mask, "enabled again by the site");
}

static void look_at_switch(struct mask *mask, uint64_t now_ns)
{
	bool disabled = killswitch_look(&mask->killswitch);

	if (mask_is_denied(mask))
		return;
	if (disabled && !mask_is_silent(mask))
		fall_silent(mask);
	else if (!disabled && mask_is_silent(mask))
		begin_again(mask, now_ns);
}

/* Its entry, or an empty one; MASK_LIBRARIES: there is none. */
static unsigned find_library(const struct mask *mask, const int *nccl_mask)
{
	unsigned empty = MASK_LIBRARIES;

	for (unsigned i = 0; i < MASK_LIBRARIES; i++) {
		if (mask->library[i].comms && mask->library[i].nccl_mask == nccl_mask)
			return i;
		if (!mask->library[i].comms && empty == MASK_LIBRARIES)
			empty = i;
	}
	return empty;
}

/* The hot path samples with this library's mask from now on; MASK_LIBRARIES: with none. What it has
 * written into another's last is looked for. */
static void make_current(struct mask *mask, unsigned library)
{
	if (has_comms(mask) && mask->current != library)
		mask->library[mask->current].watch = WATCH_ROUNDS;
	mask->current = library;
	if (library < MASK_LIBRARIES)
		atomic_store(&mask->track->mask_all, mask->library[library].wanted);
	atomic_store(&mask->track->mask,
	             library < MASK_LIBRARIES ? mask->library[library].nccl_mask : NULL);
}

/* What the hot path's last, late store has left is put right. */
static void look_for_late_stores(const struct mask *mask, struct mask_library *library)
{
	bool silent = mask_is_silent(mask);
	int want = silent ? 0 : library->wanted, had;
	bool is_sampled =
	    !silent && mask->budget.every > 1 && library == &mask->library[mask->current];

	if (!library->comms || !library->watch || is_sampled)
		return;
	had = __atomic_load_n(library->nccl_mask, __ATOMIC_RELAXED);
	if (had == want) {
		library->watch--;
	} else if (is_ours(library, had)) {
		__atomic_compare_exchange_n(library->nccl_mask, &had, want, false, __ATOMIC_RELAXED,
		                            __ATOMIC_RELAXED);
		library->watch = WATCH_ROUNDS;
	} else {
		library->watch = 0; /* somebody else's value */
	}
}

/* From 2.31 on the RAS client may take away kernel events for a whole job. */
static void look_for_masking(const struct mask *mask, const struct mask_library *library)
{
	if (library->comms && !mask_is_silent(mask) && library->wanted & ABI_KERNEL_CH &&
	    mask->track->options.api >= 7 &&
	    !(__atomic_load_n(library->nccl_mask, __ATOMIC_RELAXED) & ABI_KERNEL_CH))
		clockmix_unasked(mask->track);
}

unsigned mask_begin(struct mask *mask, int *nccl_mask, int wanted, uint64_t now_ns)
{
	unsigned number = find_library(mask, nccl_mask), before = mask->current;
	struct mask_library *library = &mask->library[number];

	if (number == MASK_LIBRARIES)
		return number;
	if (!has_comms(mask)) { /* nobody was there to be measured */
		mask->round_ns = now_ns;
		begin_budget(mask, now_ns);
	}
	look_at_switch(mask, now_ns);
	library->nccl_mask = nccl_mask;
	if (!library->comms++)
		library->watch = 0;
	library->wanted = library->before = wanted;
	make_current(mask, number);
	/* One store: the mask is of the whole process, and other communicators are at work. */
	__atomic_store_n(nccl_mask, mask_is_silent(mask) ? 0 : wanted, __ATOMIC_RELAXED);
	if (before < MASK_LIBRARIES && before != number)
		look_for_late_stores(mask, &mask->library[before]);
	return number;
}

void mask_want(struct mask *mask, unsigned number, int wanted)
{
	struct mask_library *library = &mask->library[number];
	int had;

	if (!library->comms)
		return;
	had = __atomic_load_n(library->nccl_mask, __ATOMIC_RELAXED);
	bool was_ours = had && is_ours(library, had);

	if (library->before == library->wanted)
		library->before = wanted;
	library->wanted = wanted;
	if (number == mask->current)
		atomic_store(&mask->track->mask_all, wanted);
	if (was_ours && !mask_is_silent(mask))
		__atomic_compare_exchange_n(library->nccl_mask, &had, wanted, false,
		                            __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	library->watch = WATCH_ROUNDS;
}

static void account_time(struct mask *mask, uint64_t now_ns)
{
	uint64_t span_ns = has_comms(mask) ? now_ns - mask->round_ns : 0;

	if (mask_is_silent(mask))
		atomic_fetch_add(&mask->header->silent_ns, span_ns);
	else if (mask->budget.every > 1)
		atomic_fetch_add(&mask->header->sampled_ns, span_ns);
	mask->round_ns = now_ns;
}

unsigned mask_end(struct mask *mask, unsigned number, uint64_t now_ns)
{
	struct mask_library *library = &mask->library[number];
	unsigned next = 0;

	account_time(mask, now_ns);
	if (!library->comms || --library->comms)
		return library->comms;
	while (next < MASK_LIBRARIES && !mask->library[next].comms)
		next++;
	if (mask->current == number)
		make_current(mask, next);
	library->nccl_mask = NULL;
	return 0;
}

static void say_share(struct mask *mask, uint64_t now_ns)
{
	const struct budget *budget = &mask->budget;
	double percent = budget->share_ppm / 1e4, allowed = budget->budget_ppm / 1e4;

	if (mask->said_ns && now_ns - mask->said_ns < SAY_PAUSE_NS)
		return;
	mask->said_ns = now_ns;
	if (budget->every > 1)
		snprintf(mask->message, sizeof(mask->message),
		         "measuring takes %.2f %% of a core of the %.2f %% allowed: one operation "
		         "in %u is timed from now on",
		         percent, allowed, budget->every);
	else if (budget->net_fewer > 1)
		snprintf(mask->message, sizeof(mask->message),
		         "measuring takes %.2f %% of a core of the %.2f %% allowed: network detail "
		         "is taken of %u times fewer operations from now on",
		         percent, allowed, budget->net_fewer);
	else
		snprintf(mask->message, sizeof(mask->message),
		         "measuring takes %.2f %% of a core of the %.2f %% allowed: every "
		         "operation is timed again",
		         percent, allowed);
}

static void keep_budget(struct mask *mask, uint64_t now_ns)
{
	mask->budget.has_net = atomic_load(&mask->header->net_on);
	if (!budget_round(&mask->budget, now_ns, atomic_load(&mask->header->hot_ns), mask->own_ns))
		return;
	atomic_store(&mask->track->sample_every, mask->budget.every);
	atomic_store(&mask->header->sampling, mask->budget.every);
	mask->library[mask->current].watch = WATCH_ROUNDS;
	say_share(mask, now_ns);
}

void mask_round(struct mask *mask, uint64_t now_ns, uint64_t own_ns)
{
	mask->own_ns = own_ns;
	account_time(mask, now_ns);
	look_at_switch(mask, now_ns);
	if (has_comms(mask) && !mask_is_silent(mask))
		keep_budget(mask, now_ns);
	for (unsigned i = 0; i < MASK_LIBRARIES; i++) {
		look_for_late_stores(mask, &mask->library[i]);
		look_for_masking(mask, &mask->library[i]);
	}
}

void mask_take_message(struct mask *mask, char message[MASK_MESSAGE_BYTES])
{
	memcpy(message, mask->message, MASK_MESSAGE_BYTES);
	mask->message[0] = '\0';
}
