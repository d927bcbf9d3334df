/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/keys.h"

#include "base/printable.h"

#define relaxed memory_order_relaxed
#define TRIES 64u /* of an exchange that another thread was faster with */

/* How many are taken of those to which a key belongs. */
static _Atomic uint32_t *taken_of(struct keys *keys, bool is_shared)
{
	return is_shared ? &keys->taken_shared : &keys->taken;
}

/* Takes a free key for that kind, not yet valid. */
static uint32_t key_take(struct keys *keys, struct box *box, const struct key_fields *fields)
{
	bool is_shared = fields->comm == BOX_COMM_MORE;
	uint32_t first = is_shared ? KEYS_OWN : 0, end = is_shared ? BOX_KEYS : KEYS_OWN;
	_Atomic uint32_t *taken = taken_of(keys, is_shared);

	if (atomic_load_explicit(taken, relaxed) >= end - first)
		return KEYS_NONE;
	for (uint32_t i = first; i < end; i++) {
		struct box_key *key = &box->keys[i];
		uint32_t unused = KEY_FREE;

		if (atomic_load_explicit(&key->used, relaxed) != KEY_FREE ||
		    !atomic_compare_exchange_strong(&key->used, &unused, KEY_TAKEN))
			continue;
		atomic_fetch_add_explicit(taken, 1, relaxed);
		key->comm = fields->comm;
		key->func = fields->func;
		key->size_class = fields->size_class;
		key->algo = fields->algo;
		key->proto = fields->proto;
		return i;
	}
	return KEYS_NONE;
}

static void key_give_back(struct keys *keys, struct box *box, uint32_t index)
{
	atomic_store_explicit(&box->keys[index].used, KEY_FREE, memory_order_release);
	atomic_fetch_sub_explicit(taken_of(keys, keys_is_shared(index)), 1, relaxed);
}

/* The communicator's own key; KEYS_NONE when none is left for it. */
static uint32_t find_or_make(struct keys *keys, struct box *box, const struct key_fields *fields)
{
	unsigned row = fields->comm < BOX_LIVE_COMMS ? fields->comm : BOX_LIVE_COMMS;
	_Atomic uint16_t *place =
	    &keys->direct[row][fields->func % KEYS_FUNCS][fields->size_class % KEYS_CLASSES];
	uint16_t first = atomic_load_explicit(place, memory_order_acquire);
	uint32_t mine = KEYS_NONE;

	/* A failed exchange means that another thread hung a key there: it may be the one, so look
	 * again. */
	for (unsigned tries = 0; tries < BOX_KEYS; tries++) {
		unsigned next = first;

		for (unsigned steps = 0; next && steps < BOX_KEYS; steps++) {
			if (key_matches(&box->keys[next - 1], fields)) {
				if (mine != KEYS_NONE)
					key_give_back(keys, box, mine);
				return next - 1;
			}
			next = atomic_load_explicit(&keys->next[next - 1], memory_order_acquire);
		}
		if (mine == KEYS_NONE)
			mine = key_take(keys, box, fields);
		if (mine == KEYS_NONE)
			return KEYS_NONE;
		atomic_store_explicit(&keys->next[mine], first, relaxed);
		atomic_store_explicit(&box->keys[mine].used, KEY_VALID, memory_order_release);
		if (atomic_compare_exchange_strong(place, &first, (uint16_t)(mine + 1)))
			return mine;
		atomic_store_explicit(&box->keys[mine].used, KEY_TAKEN, relaxed);
	}
	key_give_back(keys, box, mine);
	return KEYS_NONE;
}

/* One thread names the record, and nobody waits for that. */
static void show_more(struct box *box)
{
	struct box_comm *comm = &box->comms[BOX_COMM_MORE];
	uint32_t unnamed = BOX_COMM_NAMELESS;

	if (!atomic_compare_exchange_strong(&comm->named, &unnamed, BOX_COMM_BEING_NAMED))
		return;
	printable_copy(comm->name, sizeof(comm->name), "(more kinds)");
	comm->rank = -1;
	atomic_store_explicit(&comm->state, BOX_COMM_FOLDED, memory_order_release);
	atomic_store_explicit(&comm->named, BOX_COMM_NAMED, memory_order_release);
}

uint32_t keys_find_or_make(struct keys *keys, struct box *box, const struct key_fields *fields)
{
	uint32_t own = find_or_make(keys, box, fields);

	if (own != KEYS_NONE)
		return own;
	/* What a group did is counted by its members, too: whoever adds up must be able to tell. */
	const struct key_fields shared = { .comm = BOX_COMM_MORE,
	                                   .func = fields->func,
	                                   .size_class = fields->size_class,
	                                   .algo = fields->algo == BOX_ALGO_GROUP
		                                       ? BOX_ALGO_GROUP
		                                       : BOX_ALGO_UNKNOWN };

	show_more(box);
	return find_or_make(keys, box, &shared);
}

void keys_halve(struct hist *hist)
{
	for (unsigned i = 0; i < HIST_BUCKETS; i++)
		atomic_store_explicit(&hist->count[i],
		                      atomic_load_explicit(&hist->count[i], relaxed) / 2, relaxed);
}

static void lower_shared(_Atomic uint64_t *figure, uint64_t value)
{
	uint64_t old = atomic_load_explicit(figure, relaxed);

	for (unsigned tries = 0; old - 1 >= value && tries < TRIES; tries++) /* 0 is "none yet" */
		if (atomic_compare_exchange_weak_explicit(figure, &old, value, relaxed, relaxed))
			return;
}

static void raise_shared(_Atomic uint64_t *figure, uint64_t value)
{
	uint64_t old = atomic_load_explicit(figure, relaxed);

	for (unsigned tries = 0; old < value && tries < TRIES; tries++)
		if (atomic_compare_exchange_weak_explicit(figure, &old, value, relaxed, relaxed))
			return;
}

void keys_account_shared(struct box *box, uint32_t index, const struct finished *op)
{
	struct box_key *key = &box->keys[index];
	_Atomic uint32_t *bucket = &box->hists[index].count[hist_bucket(op->time_ns)];

	atomic_fetch_add_explicit(&key->begun, 1, memory_order_acq_rel);
	/* Halving needs the key for oneself, so a full one stays full. */
	if (atomic_load_explicit(bucket, relaxed) < UINT32_MAX)
		atomic_fetch_add_explicit(bucket, 1, relaxed);
	atomic_fetch_add_explicit(&key->bytes, op->bytes, relaxed);
	atomic_fetch_add_explicit(&key->busy_ns, op->time_ns, relaxed);
	atomic_fetch_add_explicit(&key->log2_rate_q20, op->rate_q20, relaxed);
	lower_shared(&key->min_ns, op->time_ns);
	raise_shared(&key->max_ns, op->time_ns);
	if (op->phased) {
		atomic_fetch_add_explicit(&key->phased_ops, 1, relaxed);
		atomic_fetch_add_explicit(&key->wait_ns, op->wait_ns, relaxed);
	}
	atomic_fetch_add_explicit(&key->ops, 1, memory_order_release);
}

void keys_add_untimed(struct box *box, uint32_t index, uint64_t ops, uint64_t bytes)
{
	atomic_fetch_add_explicit(&box->keys[index].untimed_bytes, bytes, relaxed);
	atomic_fetch_add_explicit(&box->keys[index].untimed_ops, ops, relaxed);
}

static void forget(struct keys *keys, unsigned comm)
{
	for (unsigned func = 0; func < KEYS_FUNCS; func++)
		for (unsigned class = 0; class < KEYS_CLASSES; class++)
			atomic_store_explicit(&keys->direct[comm][func][class], 0, relaxed);
}

static void key_clear(struct keys *keys, struct box *box, uint32_t index)
{
	struct box_key *key = &box->keys[index];

	for (unsigned i = 0; i < HIST_BUCKETS; i++)
		atomic_store_explicit(&box->hists[index].count[i], 0, relaxed);
	atomic_store_explicit(&key->ops, 0, relaxed);
	atomic_store_explicit(&key->begun, 0, relaxed);
	atomic_store_explicit(&key->bytes, 0, relaxed);
	atomic_store_explicit(&key->busy_ns, 0, relaxed);
	atomic_store_explicit(&key->log2_rate_q20, 0, relaxed);
	atomic_store_explicit(&key->min_ns, 0, relaxed);
	atomic_store_explicit(&key->max_ns, 0, relaxed);
	atomic_store_explicit(&key->first_index, 0, relaxed);
	atomic_store_explicit(&key->last_index, 0, relaxed);
	atomic_store_explicit(&key->untimed_ops, 0, relaxed);
	atomic_store_explicit(&key->untimed_bytes, 0, relaxed);
	atomic_store_explicit(&key->queued_ns, 0, relaxed);
	atomic_store_explicit(&key->queued_looks, 0, relaxed);
	atomic_store_explicit(&key->phased_ops, 0, relaxed);
	atomic_store_explicit(&key->wait_ns, 0, relaxed);
	key_give_back(keys, box, index);
}

static void add_to(_Atomic uint64_t *to, _Atomic uint64_t *from)
{
	atomic_fetch_add_explicit(to, atomic_load_explicit(from, relaxed), relaxed);
}

/* Adds one histogram to another; both halved if that makes room. */
static void hist_merge(struct hist *to, const struct hist *from)
{
	bool is_full = false;

	for (unsigned i = 0; i < HIST_BUCKETS; i++)
		is_full |= atomic_load_explicit(&to->count[i], relaxed) >
		           UINT32_MAX - atomic_load_explicit(&from->count[i], relaxed);
	if (is_full)
		keys_halve(to);
	for (unsigned i = 0; i < HIST_BUCKETS; i++)
		atomic_store_explicit(
		    &to->count[i],
		    atomic_load_explicit(&to->count[i], relaxed) +
			(atomic_load_explicit(&from->count[i], relaxed) >> is_full),
		    relaxed);
}

/* Adds what key `from` has to key `to`; operation indices of other communicators do not compare, so
 * they go. */
static void key_merge(struct box *box, uint32_t from, uint32_t to)
{
	struct box_key *source = &box->keys[from], *target = &box->keys[to];
	uint64_t ops = atomic_load_explicit(&source->ops, relaxed);
	uint64_t min = atomic_load_explicit(&source->min_ns, relaxed);

	atomic_fetch_add_explicit(&target->begun, ops, relaxed);
	order_stores();
	hist_merge(&box->hists[to], &box->hists[from]);
	add_to(&target->bytes, &source->bytes);
	add_to(&target->busy_ns, &source->busy_ns);
	atomic_fetch_add_explicit(&target->log2_rate_q20,
	                          atomic_load_explicit(&source->log2_rate_q20, relaxed), relaxed);
	if (min)
		owned_lower(&target->min_ns, min);
	owned_raise(&target->max_ns, atomic_load_explicit(&source->max_ns, relaxed));
	add_to(&target->untimed_bytes, &source->untimed_bytes);
	add_to(&target->queued_ns, &source->queued_ns);
	atomic_fetch_add_explicit(&target->queued_looks,
	                          atomic_load_explicit(&source->queued_looks, relaxed), relaxed);
	add_to(&target->untimed_ops, &source->untimed_ops);
	add_to(&target->phased_ops, &source->phased_ops);
	add_to(&target->wait_ns, &source->wait_ns);
	atomic_fetch_add_explicit(&target->ops, ops, memory_order_release);
}

/* NCCL may yet have told of these calls; their communicator is gone, so nobody will know. */
static void forget_calls(struct keys *keys, uint32_t index)
{
	atomic_store_explicit(&keys->called_ops[index], 0, relaxed);
	atomic_store_explicit(&keys->called_bytes[index], 0, relaxed);
}

void keys_fold(struct keys *keys, struct box *box, unsigned from, unsigned to)
{
	if (from < BOX_LIVE_COMMS) /* nobody looks for a folded one's */
		forget(keys, from);
	for (uint32_t i = 0; i < BOX_KEYS; i++) {
		struct box_key *key = keys_of_comm(box, i, from);
		uint32_t twin = 0;

		if (!key)
			continue;
		struct key_fields fields = { to, key->func, key->size_class, key->algo,
		                             key->proto };

		forget_calls(keys, i);
		while (twin < BOX_KEYS && !key_matches(&box->keys[twin], &fields))
			twin++;
		if (twin < BOX_KEYS) {
			key_merge(box, i, twin);
			key_clear(keys, box, i);
		} else {
			key->comm = to;
			atomic_store_explicit(&key->first_index, 0, relaxed);
			atomic_store_explicit(&key->last_index, 0, relaxed);
		}
	}
}
