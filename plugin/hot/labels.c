/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/labels.h"

#include <string.h>

#include "base/printable.h"
#include "hot/atomics.h"
#include "hot/handle.h"
#include "hot/keys.h"

#define relaxed memory_order_relaxed
#define NONE UINT32_MAX
#define PLACE_BITS 8

_Static_assert(BOX_LABELS < 1u << PLACE_BITS, "a place, + 1, fits a byte");

/* The places of each kind in the box; the last of them is for all others of the kind. */
static const struct {
	uint32_t first, count;
} places[BOX_LABEL_KINDS] = {
	[BOX_LABEL_USER_TAG] = { 0, BOX_LABEL_USER_TAGS },
	[BOX_LABEL_KERNEL] = { BOX_LABEL_USER_TAGS, BOX_LABEL_KERNELS },
	[BOX_LABEL_ROOT] = { BOX_LABEL_USER_TAGS + BOX_LABEL_KERNELS, BOX_LABEL_ROOTS },
};

static uint32_t used_of(const struct box_label *label)
{
	return atomic_load_explicit(&label->used, memory_order_acquire);
}

bool labels_are_same(const struct box_label *one, const struct box_label *other)
{
	return used_of(one) == KEY_VALID && used_of(other) == KEY_VALID &&
	       one->kind == other->kind && one->func == other->func && one->value == other->value &&
	       !strcmp(one->text, other->text) &&
	       atomic_load_explicit(&one->comm, relaxed) ==
	           atomic_load_explicit(&other->comm, relaxed);
}

static bool is_same(const struct box_label *label, const struct label_fields *fields)
{
	return used_of(label) == KEY_VALID && label->value == fields->value &&
	       label->func == fields->func &&
	       atomic_load_explicit(&label->comm, relaxed) == fields->comm &&
	       (!fields->text || !strcmp(label->text, fields->text));
}

/* False: somebody else has taken the place. */
static bool take(struct box_label *label, const struct label_fields *fields)
{
	uint32_t is_free = KEY_FREE;

	if (!atomic_compare_exchange_strong(&label->used, &is_free, KEY_TAKEN))
		return false;
	label->kind = (uint8_t)fields->kind;
	label->func = fields->func;
	label->value = fields->value;
	printable_copy(label->text, sizeof(label->text), fields->text);
	atomic_store_explicit(&label->comm, fields->comm, relaxed);
	atomic_store_explicit(&label->used, KEY_VALID, memory_order_release);
	return true;
}

/* Two threads that meet a new label at once may take two places for it: readers add them up. */
static struct box_label *find(struct box *box, const struct label_fields *fields)
{
	struct box_label *first = &box->labels[places[fields->kind].first];
	struct box_label *others = first + places[fields->kind].count - 1;
	const struct label_fields rest = { .kind = fields->kind,
	                                   .comm = BOX_LABEL_ALL_COMMS,
	                                   .value = BOX_LABEL_OTHERS };

	for (struct box_label *label = first; label < others; label++)
		if (is_same(label, fields))
			return label;
	for (struct box_label *label = first; label < others; label++)
		if (used_of(label) == KEY_FREE && take(label, fields))
			return label;
	take(others, &rest);
	return others;
}

/* The parts of a group are noted by nobody: their times overlap. */
static void note(struct track *track, const void *operation, uint32_t place)
{
	uint64_t bits = handle_bits(operation), generation = handle_generation(bits);
	_Atomic uint64_t *noted = &track->labels.noted[handle_slot(bits)];
	uint64_t old = atomic_load_explicit(noted, relaxed);
	uint64_t before = old >> 32 == generation ? old & (UINT32_MAX >> PLACE_BITS) : 0;

	if (!handle_is_used(bits, HANDLE_OPERATION) ||
	    track_group_of(&track->ops[handle_slot(bits)]))
		return;
	atomic_store_explicit(noted, generation << 32 | before << PLACE_BITS | (place + 1),
	                      relaxed);
	atomic_store_explicit(&track->labelled, true, relaxed);
}

static void seen(struct track *track, struct box_label *label)
{
	uint64_t tick = atomic_load_explicit(&track->sweep_tick, relaxed), none = 0;

	if (!atomic_load_explicit(&label->first_tick, relaxed))
		atomic_compare_exchange_strong_explicit(&label->first_tick, &none, tick, relaxed,
		                                        relaxed);
	atomic_store_explicit(&label->last_tick, tick, relaxed);
}

static void add(struct track *track, const struct label_fields *fields, uint64_t bytes,
                const void *operation)
{
	struct box_label *label = find(track->box, fields);

	atomic_fetch_add_explicit(&label->bytes, bytes, relaxed);
	atomic_fetch_add_explicit(&label->ops, 1, relaxed);
	seen(track, label);
	note(track, operation, (uint32_t)(label - track->box->labels));
}

static struct label_fields root_fields(unsigned comm, uint8_t func, int root)
{
	return (struct label_fields){
		.kind = BOX_LABEL_ROOT, .comm = comm, .func = func, .value = (uint32_t)root
	};
}

void labels_root(struct track *track, unsigned comm, uint8_t func, int root, uint64_t bytes,
                 const void *operation)
{
	const struct label_fields fields = root_fields(comm, func, root);

	if (root >= 0)
		add(track, &fields, bytes, operation);
}

void labels_called(struct track *track, unsigned comm, uint8_t func, int root, uint64_t bytes)
{
	const struct label_fields fields = root_fields(comm, func, root);

	if (root < 0)
		return;
	struct box_label *label = find(track->box, &fields);

	atomic_fetch_add_explicit(&label->called_bytes, bytes, relaxed);
	atomic_fetch_add_explicit(&label->called_ops, 1, relaxed);
	seen(track, label);
}

void labels_told(struct track *track, const void *context, uint64_t user_tag, const char *kernel,
                 uint64_t bytes, const void *operation)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);
	char text[BOX_LABEL_TEXT];

	if (comm == UINT32_MAX || !atomic_load_explicit(&track->follows, relaxed) ||
	    atomic_load_explicit(&track->box->comms[comm].generation, relaxed) != generation)
		return;
	if (user_tag && !(user_tag >> 63))
		add(track,
		    &(struct label_fields){ .kind = BOX_LABEL_USER_TAG,
		                            .comm = BOX_LABEL_ALL_COMMS,
		                            .value = user_tag },
		    bytes, operation);
	printable_copy(text, sizeof(text), kernel);
	if (text[0])
		add(track,
		    &(struct label_fields){
			.kind = BOX_LABEL_KERNEL, .comm = BOX_LABEL_ALL_COMMS, .text = text },
		    bytes, operation);
}

void labels_over(struct track *track, const struct box_op *op, uint64_t time_ns)
{
	uint64_t noted = atomic_load_explicit(&track->labels.noted[op - track->ops], relaxed);

	if (noted >> 32 != atomic_load_explicit(&op->generation, relaxed))
		return;
	for (uint32_t rest = (uint32_t)noted; rest; rest >>= PLACE_BITS) {
		struct box_label *label =
		    &track->box->labels[(rest & ((1u << PLACE_BITS) - 1)) - 1];

		atomic_fetch_add_explicit(&label->busy_ns, time_ns, relaxed);
		atomic_fetch_add_explicit(&label->timed_ops, 1, relaxed);
	}
}

static void move(_Atomic uint64_t *to, _Atomic uint64_t *from)
{
	atomic_fetch_add_explicit(to, atomic_exchange_explicit(from, 0, relaxed), relaxed);
}

static void merge(struct box_label *to, struct box_label *from)
{
	owned_lower(&to->first_tick, atomic_exchange_explicit(&from->first_tick, 0, relaxed));
	owned_raise(&to->last_tick, atomic_exchange_explicit(&from->last_tick, 0, relaxed));
	move(&to->ops, &from->ops);
	move(&to->bytes, &from->bytes);
	move(&to->timed_ops, &from->timed_ops);
	move(&to->busy_ns, &from->busy_ns);
	move(&to->called_ops, &from->called_ops);
	move(&to->called_bytes, &from->called_bytes);
	atomic_store_explicit(&from->used, KEY_FREE, memory_order_release);
}

void labels_fold(struct box *box, unsigned from, unsigned to)
{
	struct box_label *first = &box->labels[places[BOX_LABEL_ROOT].first];
	struct box_label *others = first + places[BOX_LABEL_ROOT].count - 1;

	for (struct box_label *label = first; label < others; label++) {
		struct box_label *twin = first;

		if (used_of(label) != KEY_VALID ||
		    atomic_load_explicit(&label->comm, relaxed) != from)
			continue;
		const struct label_fields fields = root_fields(to, label->func, (int)label->value);

		while (twin < others && !is_same(twin, &fields))
			twin++;
		if (twin < others)
			merge(twin, label);
		else
			atomic_store_explicit(&label->comm, to, relaxed);
	}
}
