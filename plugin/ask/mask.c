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

static enum box_silent silence_of(const struct control *control)
{
	return (enum box_silent)atomic_load_explicit(&control->header->silent, relaxed);
}

bool control_is_denied(const struct control *control)
{
	return silence_of(control) >= BOX_SILENT_DENIED;
}

bool control_is_silent(const struct control *control)
{
	return silence_of(control) != BOX_SILENT_NOT;
}

/* One of the two words that the hot path writes. */
static bool is_ours(const struct control_library *library, int mask)
{
	return mask == library->wanted || mask == (library->wanted & ~ABI_DETAIL);
}

static bool has_comms(const struct control *control)
{
	return control->current < CONTROL_LIBRARIES;
}

static void say(struct control *control, const char *text)
{
	snprintf(control->message, sizeof(control->message), "%s", text);
}

void control_init(struct control *control, const struct config *config, struct track *track)
{
	char bad[64];

	memset(control, 0, sizeof(*control));
	control->track = track;
	control->header = track->box->header;
	control->current = CONTROL_LIBRARIES;
	killswitch_open(&control->killswitch, config->control_dir);
	guard_init(&control->guard, config->budget_ppm);
	atomic_store(&control->header->sampling, 1);
	if (control_is_denied(control)) {
		track_follow(track, false);
		say(control, "RCCL is not supported yet: nothing is measured");
		return;
	}
	if (deny_lists(config->deny_nccl, control->header->nccl_version, bad, sizeof(bad))) {
		track_follow(track, false);
		atomic_store(&control->header->silent, BOX_SILENT_DENIED);
		say(control, "this NCCL is on the site's list NCCL_INSPECTOR_DENY_NCCL: nothing is measured");
	} else if (*bad) {
		snprintf(control->message, sizeof(control->message),
			 "NCCL_INSPECTOR_DENY_NCCL: '%s' is neither a version nor a range", bad);
	}
}

static void begin_guard(struct control *control, uint64_t now_ns)
{
	guard_begin(&control->guard, now_ns, atomic_load(&control->header->hot_ns), control->own_ns);
}

static void silence(struct control_library *library)
{
	int had = __atomic_exchange_n(library->mask, 0, __ATOMIC_RELAXED);

	library->before = is_ours(library, had) ? library->wanted : had;
	library->watch = WATCH_ROUNDS;
}

static void fall_silent(struct control *control)
{
	atomic_store(&control->track->sample_every, 1); /* from here on every thread writes at most once more */
	for (unsigned i = 0; i < CONTROL_LIBRARIES; i++)
		if (control->library[i].comms)
			silence(&control->library[i]);
	track_follow(control->track, false);
	atomic_store(&control->header->silent, BOX_SILENT_DISABLED);
	say(control, "disabled by the site: nothing is measured until it is enabled again");
}

static void speak(struct control_library *library)
{
	int nothing = 0;

	__atomic_compare_exchange_n(library->mask, &nothing, library->before, false, __ATOMIC_RELAXED,
				    __ATOMIC_RELAXED);
	library->watch = WATCH_ROUNDS;
}

static void begin_again(struct control *control, uint64_t now_ns)
{
	atomic_store(&control->track->sample_every, control->guard.every);
	track_follow(control->track, true);
	for (unsigned i = 0; i < CONTROL_LIBRARIES; i++)
		if (control->library[i].comms)
			speak(&control->library[i]);
	atomic_store(&control->header->silent, BOX_SILENT_NOT);
	begin_guard(control, now_ns);
	say(control, "enabled again by the site");
}

static void look_at_switch(struct control *control, uint64_t now_ns)
{
	bool disabled = killswitch_look(&control->killswitch);

	if (control_is_denied(control))
		return;
	if (disabled && !control_is_silent(control))
		fall_silent(control);
	else if (!disabled && control_is_silent(control))
		begin_again(control, now_ns);
}

/* Its entry, or an empty one; CONTROL_LIBRARIES: there is none. */
static unsigned find_library(const struct control *control, const int *mask)
{
	unsigned empty = CONTROL_LIBRARIES;

	for (unsigned i = 0; i < CONTROL_LIBRARIES; i++) {
		if (control->library[i].comms && control->library[i].mask == mask)
			return i;
		if (!control->library[i].comms && empty == CONTROL_LIBRARIES)
			empty = i;
	}
	return empty;
}

/* The hot path samples with this library's mask from now on; CONTROL_LIBRARIES: with none. What it has written into
 * another's last is looked for. */
static void make_current(struct control *control, unsigned library)
{
	if (has_comms(control) && control->current != library)
		control->library[control->current].watch = WATCH_ROUNDS;
	control->current = library;
	if (library < CONTROL_LIBRARIES)
		atomic_store(&control->track->mask_all, control->library[library].wanted);
	atomic_store(&control->track->mask, library < CONTROL_LIBRARIES ? control->library[library].mask : NULL);
}

/* What the hot path's last, late store has left is put right. */
static void look_for_late_stores(const struct control *control, struct control_library *library)
{
	bool silent = control_is_silent(control);
	int want = silent ? 0 : library->wanted, had;
	bool is_sampled = !silent && control->guard.every > 1 && library == &control->library[control->current];

	if (!library->comms || !library->watch || is_sampled)
		return;
	had = __atomic_load_n(library->mask, __ATOMIC_RELAXED);
	if (had == want) {
		library->watch--;
	} else if (is_ours(library, had)) {
		__atomic_compare_exchange_n(library->mask, &had, want, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
		library->watch = WATCH_ROUNDS;
	} else {
		library->watch = 0; /* another one's word */
	}
}

/* From 2.31 on the RAS client may take away kernel events for a whole job. */
static void look_for_masking(const struct control *control, const struct control_library *library)
{
	if (library->comms && !control_is_silent(control) && library->wanted & ABI_KERNEL_CH &&
	    control->track->options.api >= 7 && !(__atomic_load_n(library->mask, __ATOMIC_RELAXED) & ABI_KERNEL_CH))
		clockmix_unasked(control->track);
}

unsigned control_begin(struct control *control, int *mask, int wanted, uint64_t now_ns)
{
	unsigned number = find_library(control, mask), before = control->current;
	struct control_library *library = &control->library[number];

	if (number == CONTROL_LIBRARIES)
		return number;
	if (!has_comms(control)) { /* nobody was there to be measured */
		control->round_ns = now_ns;
		begin_guard(control, now_ns);
	}
	look_at_switch(control, now_ns);
	library->mask = mask;
	if (!library->comms++)
		library->watch = 0;
	library->wanted = library->before = wanted;
	make_current(control, number);
	/* One store: the mask is of the whole process, and other communicators are at work. */
	__atomic_store_n(mask, control_is_silent(control) ? 0 : wanted, __ATOMIC_RELAXED);
	if (before < CONTROL_LIBRARIES && before != number)
		look_for_late_stores(control, &control->library[before]);
	return number;
}

void control_want(struct control *control, unsigned number, int wanted)
{
	struct control_library *library = &control->library[number];
	int had;

	if (!library->comms)
		return;
	had = __atomic_load_n(library->mask, __ATOMIC_RELAXED);
	bool was_ours = had && is_ours(library, had);

	if (library->before == library->wanted)
		library->before = wanted;
	library->wanted = wanted;
	if (number == control->current)
		atomic_store(&control->track->mask_all, wanted);
	if (was_ours && !control_is_silent(control))
		__atomic_compare_exchange_n(library->mask, &had, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	library->watch = WATCH_ROUNDS;
}

static void account_time(struct control *control, uint64_t now_ns)
{
	uint64_t span_ns = has_comms(control) ? now_ns - control->round_ns : 0;

	if (control_is_silent(control))
		atomic_fetch_add(&control->header->silent_ns, span_ns);
	else if (control->guard.every > 1)
		atomic_fetch_add(&control->header->sampled_ns, span_ns);
	control->round_ns = now_ns;
}

unsigned control_end(struct control *control, unsigned number, uint64_t now_ns)
{
	struct control_library *library = &control->library[number];
	unsigned next = 0;

	account_time(control, now_ns);
	if (!library->comms || --library->comms)
		return library->comms;
	while (next < CONTROL_LIBRARIES && !control->library[next].comms)
		next++;
	if (control->current == number)
		make_current(control, next);
	library->mask = NULL;
	return 0;
}

static void say_share(struct control *control, uint64_t now_ns)
{
	const struct guard *guard = &control->guard;
	double percent = guard->share_ppm / 1e4, budget = guard->budget_ppm / 1e4;

	if (control->said_ns && now_ns - control->said_ns < SAY_PAUSE_NS)
		return;
	control->said_ns = now_ns;
	if (guard->every > 1)
		snprintf(control->message, sizeof(control->message),
			 "measuring takes %.2f %% of a core of the %.2f %% allowed: one operation in %u is timed from now on",
			 percent, budget, guard->every);
	else
		snprintf(control->message, sizeof(control->message),
			 "measuring takes %.2f %% of a core of the %.2f %% allowed: every operation is timed again", percent,
			 budget);
}

static void keep_budget(struct control *control, uint64_t now_ns)
{
	if (!guard_round(&control->guard, now_ns, atomic_load(&control->header->hot_ns), control->own_ns))
		return;
	atomic_store(&control->track->sample_every, control->guard.every);
	atomic_store(&control->header->sampling, control->guard.every);
	control->library[control->current].watch = WATCH_ROUNDS;
	say_share(control, now_ns);
}

void control_round(struct control *control, uint64_t now_ns, uint64_t own_ns)
{
	control->own_ns = own_ns;
	account_time(control, now_ns);
	look_at_switch(control, now_ns);
	if (has_comms(control) && !control_is_silent(control))
		keep_budget(control, now_ns);
	for (unsigned i = 0; i < CONTROL_LIBRARIES; i++) {
		look_for_late_stores(control, &control->library[i]);
		look_for_masking(control, &control->library[i]);
	}
}

void control_take_message(struct control *control, char message[CONTROL_MESSAGE_BYTES])
{
	memcpy(message, control->message, CONTROL_MESSAGE_BYTES);
	control->message[0] = '\0';
}
