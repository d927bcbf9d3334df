/* SPDX-License-Identifier: Apache-2.0 */
#include "keys.h"

#define relaxed memory_order_relaxed

/* A free key with the words in it, not yet valid. */
static uint32_t key_take(struct keys *keys, struct box *box, const struct key_words *words)
{
	if (atomic_load_explicit(&keys->taken, relaxed) >= BOX_KEYS)
		return KEYS_NONE;
	for (unsigned i = 0; i < BOX_KEYS; i++) {
		struct box_key *key = &box->keys[i];
		uint32_t unused = KEY_FREE;

		if (atomic_load_explicit(&key->used, relaxed) != KEY_FREE ||
		    !atomic_compare_exchange_strong(&key->used, &unused, KEY_TAKEN))
			continue;
		atomic_fetch_add_explicit(&keys->taken, 1, relaxed);
		key->comm = words->comm;
		key->func = words->func;
		key->size_class = words->size_class;
		key->algo = words->algo;
		key->proto = words->proto;
		return i;
	}
	return KEYS_NONE;
}

static void key_give_back(struct keys *keys, struct box *box, uint32_t index)
{
	atomic_store_explicit(&box->keys[index].used, KEY_FREE, memory_order_release);
	atomic_fetch_sub_explicit(&keys->taken, 1, relaxed);
}

uint32_t keys_find_or_make(struct keys *keys, struct box *box, const struct key_words *words)
{
	_Atomic uint16_t *place =
		&keys->direct[words->comm][words->func % KEYS_FUNCS][words->size_class % KEYS_CLASSES];
	uint16_t first = atomic_load_explicit(place, memory_order_acquire);
	uint32_t mine = KEYS_NONE;

	/* A failed exchange means that another thread hung a key there: it may be the one, so look again. */
	for (unsigned tries = 0; tries < BOX_KEYS; tries++) {
		unsigned next = first;

		for (unsigned steps = 0; next && steps < BOX_KEYS; steps++) {
			if (key_matches(&box->keys[next - 1], words)) {
				if (mine != KEYS_NONE)
					key_give_back(keys, box, mine);
				return next - 1;
			}
			next = atomic_load_explicit(&keys->next[next - 1], memory_order_acquire);
		}
		if (mine == KEYS_NONE)
			mine = key_take(keys, box, words);
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

void keys_add_untimed(struct box *box, uint32_t index, uint64_t ops, uint64_t bytes)
{
	atomic_fetch_add_explicit(&box->keys[index].untimed_bytes, bytes, relaxed);
	atomic_fetch_add_explicit(&box->keys[index].untimed_ops, ops, relaxed);
}

static void forget(struct keys *keys, unsigned comm)
{
	for (unsigned func = 0; func < KEYS_FUNCS; func++)
		for (unsigned class = 0; class < KEYS_CLASSES; class ++)
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

/* Adds what key `from` has to key `to`; operation indices of other communicators do not compare, so they go. */
static void key_merge(struct box *box, uint32_t from, uint32_t to)
{
	struct box_key *source = &box->keys[from], *target = &box->keys[to];
	uint64_t ops = atomic_load_explicit(&source->ops, relaxed);
	uint64_t min = atomic_load_explicit(&source->min_ns, relaxed);

	atomic_fetch_add_explicit(&target->begun, ops, relaxed);
	word_order();
	for (unsigned i = 0; i < HIST_BUCKETS; i++)
		keys_add_to_bucket(&box->hists[to].count[i],
			   atomic_load_explicit(&box->hists[from].count[i], relaxed));
	add_to(&target->bytes, &source->bytes);
	add_to(&target->busy_ns, &source->busy_ns);
	atomic_fetch_add_explicit(&target->log2_rate_q20,
				  atomic_load_explicit(&source->log2_rate_q20, relaxed), relaxed);
	if (min)
		word_lower(&target->min_ns, min);
	word_raise(&target->max_ns, atomic_load_explicit(&source->max_ns, relaxed));
	add_to(&target->untimed_bytes, &source->untimed_bytes);
	add_to(&target->queued_ns, &source->queued_ns);
	atomic_fetch_add_explicit(&target->queued_looks, atomic_load_explicit(&source->queued_looks, relaxed),
				  relaxed);
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
		struct box_key *key = &box->keys[i];
		uint32_t twin = 0;

		if (atomic_load_explicit(&key->used, memory_order_acquire) != KEY_VALID ||
		    key->comm != from)
			continue;
		struct key_words words = { to, key->func, key->size_class, key->algo, key->proto };

		forget_calls(keys, i);
		while (twin < BOX_KEYS && !key_matches(&box->keys[twin], &words))
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
