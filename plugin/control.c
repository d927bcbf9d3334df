/* SPDX-License-Identifier: Apache-2.0 */
#include "control.h"

#include <stdio.h>
#include <string.h>

#include "abi.h"
#include "deny.h"

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
	return silence_of(control) == BOX_SILENT_DENIED;
}

bool control_is_silent(const struct control *control)
{
	return silence_of(control) != BOX_SILENT_NOT;
}

static int wanted_mask(const struct control *control)
{
	return atomic_load_explicit(&control->track->mask_all, relaxed);
}

/* One of the two words that the hot path writes. */
static bool is_ours(const struct control *control, int mask)
{
	int all = wanted_mask(control);

	return mask == all || mask == (all & ~ABI_DETAIL);
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
	killswitch_open(&control->killswitch, config->control_dir);
	guard_init(&control->guard, config->budget_ppm);
	atomic_store(&control->header->sampling, 1);
	if (deny_lists(config->deny_nccl, control->header->nccl_version, bad, sizeof(bad))) {
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

static void fall_silent(struct control *control)
{
	int *mask = atomic_load(&control->track->mask);

	control->before = wanted_mask(control);
	atomic_store(&control->track->sample_every, 1); /* from here on every thread writes at most once more */
	if (mask) {
		int had = __atomic_exchange_n(mask, 0, __ATOMIC_RELAXED);

		if (!is_ours(control, had))
			control->before = had;
	}
	atomic_store(&control->header->silent, BOX_SILENT_DISABLED);
	control->watch = WATCH_ROUNDS;
	say(control, "disabled by the site: nothing is measured until it is enabled again");
}

static void begin_again(struct control *control, uint64_t now_ns)
{
	int *mask = atomic_load(&control->track->mask), nothing = 0;

	atomic_store(&control->track->sample_every, control->guard.every);
	if (mask)
		__atomic_compare_exchange_n(mask, &nothing, control->before, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	atomic_store(&control->header->silent, BOX_SILENT_NOT);
	control->watch = WATCH_ROUNDS;
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

void control_begin(struct control *control, int *mask, int wanted, uint64_t now_ns)
{
	bool is_first = !atomic_load(&control->track->mask);

	if (is_first) { /* nobody was there to be measured */
		control->round_ns = now_ns;
		begin_guard(control, now_ns);
	}
	atomic_store(&control->track->mask_all, wanted);
	look_at_switch(control, now_ns);
	control->before = wanted;
	atomic_store(&control->track->mask, mask);
	/* One store: the mask is of the whole process, and other communicators are at work. */
	__atomic_store_n(mask, control_is_silent(control) ? 0 : wanted, __ATOMIC_RELAXED);
}

void control_want(struct control *control, int wanted)
{
	int *mask = atomic_load(&control->track->mask);
	int had = mask ? __atomic_load_n(mask, __ATOMIC_RELAXED) : 0;
	bool was_ours = had && is_ours(control, had);

	if (control->before == wanted_mask(control))
		control->before = wanted;
	atomic_store(&control->track->mask_all, wanted);
	if (was_ours && !control_is_silent(control))
		__atomic_compare_exchange_n(mask, &had, wanted, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
	control->watch = WATCH_ROUNDS;
}

static void account_time(struct control *control, uint64_t now_ns)
{
	uint64_t span_ns = now_ns - control->round_ns;

	if (control_is_silent(control))
		atomic_fetch_add(&control->header->silent_ns, span_ns);
	else if (control->guard.every > 1)
		atomic_fetch_add(&control->header->sampled_ns, span_ns);
	control->round_ns = now_ns;
}

void control_end(struct control *control, uint64_t now_ns)
{
	account_time(control, now_ns);
	atomic_store(&control->track->mask, NULL);
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
	control->watch = WATCH_ROUNDS;
	say_share(control, now_ns);
}

/* What the hot path's last, late store has left is put right. */
static void look_for_late_stores(struct control *control)
{
	bool silent = control_is_silent(control);
	int *mask = atomic_load(&control->track->mask);
	int want = silent ? 0 : wanted_mask(control), had;

	if (!mask || !control->watch || (!silent && control->guard.every > 1))
		return;
	had = __atomic_load_n(mask, __ATOMIC_RELAXED);
	if (had == want) {
		control->watch--;
	} else if (is_ours(control, had)) {
		__atomic_compare_exchange_n(mask, &had, want, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
		control->watch = WATCH_ROUNDS;
	} else {
		control->watch = 0; /* another one's word */
	}
}

void control_round(struct control *control, uint64_t now_ns, uint64_t own_ns)
{
	control->own_ns = own_ns;
	account_time(control, now_ns);
	look_at_switch(control, now_ns);
	if (!control_is_silent(control))
		keep_budget(control, now_ns);
	look_for_late_stores(control);
}

void control_take_message(struct control *control, char message[CONTROL_MESSAGE_BYTES])
{
	memcpy(message, control->message, CONTROL_MESSAGE_BYTES);
	control->message[0] = '\0';
}
