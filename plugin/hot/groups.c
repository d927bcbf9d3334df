/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/groups.h"

#include <stddef.h>

#include "hot/atomics.h"

#define relaxed memory_order_relaxed

/* In struct group.state: members joined and over in the lower bits, then these. */
#define ONE_JOINED (1ull << GROUPS_JOINED_SHIFT)
#define COUNT_MASK GROUPS_COUNT_MASK
#define SPOILED (1ull << 62)
#define CLOSED (1ull << 63)

static uint64_t joined(uint64_t state)
{
	return state >> GROUPS_JOINED_SHIFT & COUNT_MASK;
}

static bool is_over(uint64_t state)
{
	return state & CLOSED && joined(state) == (state & COUNT_MASK);
}

#define PLACES 8u /* where a group's entry may be */

static struct group *place_of(struct groups *groups, uint64_t token, unsigned place)
{
	return &groups->group[((token * 0x9e3779b97f4a7c15ull >> 56) + place) % GROUPS];
}

_Static_assert(GROUPS == 256, "place_of takes eight bits");

static struct group *group_of(struct groups *groups, uint64_t token)
{
	for (unsigned place = 0; place < PLACES; place++) {
		struct group *group = place_of(groups, token, place);

		if (atomic_load_explicit(&group->token, memory_order_acquire) == token)
			return group;
	}
	return NULL;
}

/* One thread tells all members of a group, so nobody else makes its entry. */
static struct group *make_group(struct groups *groups, uint64_t token)
{
	for (unsigned place = 0; place < PLACES; place++) {
		struct group *group = place_of(groups, token, place);
		uint64_t owner = atomic_load_explicit(&group->token, relaxed);

		if (!owner && atomic_compare_exchange_strong_explicit(
				  &group->token, &owner, token, memory_order_acquire, relaxed))
			return group;
	}
	return NULL;
}

uint32_t groups_join(struct groups *groups, uint64_t token, bool is_first)
{
	struct group *group = is_first ? make_group(groups, token) : group_of(groups, token);

	return group ? (uint32_t)(group - groups->group) + 1 : 0;
}

void groups_add(struct groups *groups, uint32_t number, bool is_send, uint64_t bytes, bool to_self)
{
	struct group *group = &groups->group[number - 1];
	_Atomic uint32_t *count = is_send ? &group->sends : &group->receives;

	if (to_self) {
		if (is_send)
			owned_add(&group->to_self, bytes);
		return;
	}
	owned_add(is_send ? &group->sent : &group->received, bytes);
	atomic_store_explicit(count, atomic_load_explicit(count, relaxed) + 1, relaxed);
	/* No member of a group without any can be over: nobody else writes the state yet. (Most
	 * groups are lone Sends.) */
	if (!atomic_load_explicit(&group->state, relaxed))
		atomic_store_explicit(&group->state, ONE_JOINED, memory_order_release);
	else
		atomic_fetch_add_explicit(&group->state, ONE_JOINED, memory_order_release);
}

void groups_add_slotless(struct groups *groups, uint32_t number, const struct slotless *member)
{
	struct group *group = &groups->group[number - 1];

	owned_raise(&group->slotless_last_index, member->index);
	owned_lower(&group->slotless_enqueue_tick, member->enqueue_tick);
	owned_lower(&group->known_tick, member->known_tick);
	atomic_store_explicit(&group->comm_generation, member->comm_generation, relaxed);
	owned_add(&group->announced_channels, member->channels);
	atomic_fetch_add_explicit(&group->slotless, 1, relaxed);
	atomic_store_explicit(&groups->has_slotless, true, relaxed);
}

bool groups_slotless_start(struct groups *groups, uint64_t token, uint64_t gpu_ns)
{
	struct group *group = group_of(groups, token);

	if (!group || !atomic_load_explicit(&group->slotless, relaxed))
		return false;
	owned_lower(&group->slotless_start_ns, gpu_ns);
	owned_add(&group->started_channels, 1);
	return true;
}

bool groups_is_closed(const struct group *group)
{
	return atomic_load(&group->state) & CLOSED;
}

static bool has_all_channels(const struct group *group)
{
	return atomic_load(&group->stopped_channels) >=
	       atomic_load_explicit(&group->announced_channels, relaxed);
}

/* Of the two threads that close the group and end its last channel, the second one finds what the
 * first has stored. */
static bool is_slotless_due(const struct group *group)
{
	return group && atomic_load_explicit(&group->slotless, relaxed) &&
	       groups_is_closed(group) && has_all_channels(group);
}

bool groups_slotless_stop(struct groups *groups, uint64_t token, uint64_t gpu_ns)
{
	struct group *group = group_of(groups, token);

	if (!group || !atomic_load_explicit(&group->slotless, relaxed) ||
	    atomic_load_explicit(&group->stopped_channels, relaxed) >=
	        atomic_load_explicit(&group->started_channels, relaxed))
		return false;
	owned_raise(&group->slotless_stop_ns, gpu_ns);
	atomic_fetch_add(&group->stopped_channels, 1);
	return is_slotless_due(group);
}

bool groups_slotless_ended(struct groups *groups, uint64_t token)
{
	return atomic_load_explicit(&groups->has_slotless, relaxed) &&
	       is_slotless_due(group_of(groups, token));
}

void groups_new_comm(struct groups *groups, unsigned comm)
{
	for (unsigned func = 0; func < BOX_FUNCS; func++)
		atomic_store_explicit(&groups->over[comm][func], 0, relaxed);
}

/* Those that are not worth an operation of their own have no number; a spoiled one has. */
static void number(struct groups *groups, uint64_t token, struct group_facts *facts)
{
	_Atomic uint32_t *over = &groups->over[groups_comm(token)][facts->func];

	facts->number = atomic_fetch_add_explicit(over, 1, relaxed) + 1;
}

/* The smaller one of two figures, of which 0 means "none"; the larger one. */
static uint64_t lower_of(const _Atomic uint64_t *one, const _Atomic uint64_t *other)
{
	uint64_t a = atomic_load_explicit(one, relaxed), b = atomic_load_explicit(other, relaxed);

	return a - 1 < b - 1 ? a : b;
}

static uint64_t higher_of(const _Atomic uint64_t *one, const _Atomic uint64_t *other)
{
	uint64_t a = atomic_load_explicit(one, relaxed), b = atomic_load_explicit(other, relaxed);

	return a > b ? a : b;
}

/* Reads what a group was and frees its entry. */
static bool end(struct groups *groups, struct group *group, uint64_t state, int nranks,
                struct group_facts *facts)
{
	uint64_t sent = atomic_load_explicit(&group->sent, relaxed);
	uint64_t received = atomic_load_explicit(&group->received, relaxed);
	uint64_t to_self = atomic_load_explicit(&group->to_self, relaxed);
	uint32_t others = nranks > 1 ? (uint32_t)nranks - 1 : UINT32_MAX;
	uint32_t sends = atomic_load_explicit(&group->sends, relaxed);
	uint32_t receives = atomic_load_explicit(&group->receives, relaxed);

	facts->start_ns = lower_of(&group->start_ns, &group->slotless_start_ns);
	facts->stop_ns = higher_of(&group->stop_ns, &group->slotless_stop_ns);
	facts->last_index = higher_of(&group->last_index, &group->slotless_last_index);
	facts->enqueue_tick = lower_of(&group->enqueue_tick, &group->slotless_enqueue_tick);
	facts->rate_bytes = sent > received ? sent : received;
	facts->bytes = facts->rate_bytes + to_self;
	if (sends == others && receives == others)
		facts->func = BOX_FUNC_ALLTOALL;
	else if (sends == others && !receives)
		facts->func = BOX_FUNC_SCATTER;
	else if (receives == others && !sends)
		facts->func = BOX_FUNC_GATHER;
	else {
		facts->func = BOX_FUNC_SENDRECV;
		facts->bytes = facts->rate_bytes;
	}
	if (sends + receives > 1)
		number(groups, atomic_load_explicit(&group->token, relaxed), facts);
	atomic_store_explicit(&group->sent, 0, relaxed);
	atomic_store_explicit(&group->received, 0, relaxed);
	atomic_store_explicit(&group->to_self, 0, relaxed);
	atomic_store_explicit(&group->sends, 0, relaxed);
	atomic_store_explicit(&group->receives, 0, relaxed);
	atomic_store_explicit(&group->start_ns, 0, relaxed);
	atomic_store_explicit(&group->stop_ns, 0, relaxed);
	atomic_store_explicit(&group->last_index, 0, relaxed);
	atomic_store_explicit(&group->enqueue_tick, 0, relaxed);
	atomic_store_explicit(&group->slotless_start_ns, 0, relaxed);
	atomic_store_explicit(&group->slotless_stop_ns, 0, relaxed);
	atomic_store_explicit(&group->slotless_last_index, 0, relaxed);
	atomic_store_explicit(&group->slotless_enqueue_tick, 0, relaxed);
	atomic_store_explicit(&group->known_tick, 0, relaxed);
	atomic_store_explicit(&group->announced_channels, 0, relaxed);
	atomic_store_explicit(&group->started_channels, 0, relaxed);
	atomic_store_explicit(&group->stopped_channels, 0, relaxed);
	atomic_store_explicit(&group->state, 0, relaxed);
	atomic_store_explicit(&group->token, 0, memory_order_release);
	return !(state & SPOILED) && sends + receives > 1;
}

bool groups_member_over(struct groups *groups, uint32_t number, uint64_t start_ns, uint64_t stop_ns,
                        uint64_t index, uint64_t enqueue_tick, int nranks,
                        struct group_facts *facts)
{
	struct group *group = &groups->group[number - 1];
	uint64_t state;

	if (stop_ns)
		owned_lower(&group->start_ns, start_ns);
	owned_raise(&group->stop_ns, stop_ns);
	owned_raise(&group->last_index, index);
	owned_lower(&group->enqueue_tick, enqueue_tick);
	if (!stop_ns)
		atomic_fetch_or_explicit(&group->state, SPOILED, relaxed);
	state = atomic_fetch_add_explicit(&group->state, 1, memory_order_acq_rel) + 1;
	return is_over(state) && end(groups, group, state, nranks, facts);
}

bool groups_slotless_times(struct groups *groups, uint64_t token, uint64_t *start_ns,
                           uint64_t *stop_ns, uint64_t *known_tick)
{
	const struct group *group = group_of(groups, token);

	if (!group || !atomic_load_explicit(&group->slotless, relaxed))
		return false;
	*start_ns = atomic_load_explicit(&group->slotless_start_ns, relaxed);
	*stop_ns = atomic_load_explicit(&group->slotless_stop_ns, relaxed);
	*known_tick = atomic_load_explicit(&group->known_tick, relaxed);
	return true;
}

bool groups_slotless_over(struct groups *groups, uint64_t token, bool timed, int nranks,
                          struct group_facts *facts)
{
	struct group *group = group_of(groups, token);
	uint32_t count = group ? atomic_exchange_explicit(&group->slotless, 0, relaxed) : 0;

	if (!count)
		return false;
	if (!timed)
		atomic_fetch_or_explicit(&group->state, SPOILED, relaxed);
	uint64_t state =
	    atomic_fetch_add_explicit(&group->state, count, memory_order_acq_rel) + count;

	return is_over(state) && end(groups, group, state, nranks, facts);
}

bool groups_close(struct groups *groups, uint64_t token, int nranks, struct group_facts *facts)
{
	struct group *group = group_of(groups, token);
	uint64_t state;

	if (!group)
		return false;
	state = atomic_fetch_or(&group->state, CLOSED) | CLOSED;
	return is_over(state) && end(groups, group, state, nranks, facts);
}

void groups_close_strays(struct groups *groups, uint64_t strays[GROUPS],
                         uint32_t (*open_number)(const void *argument, unsigned comm),
                         const void *argument)
{
	for (unsigned i = 0; i < GROUPS; i++) {
		struct group *group = &groups->group[i];
		uint64_t token = atomic_load_explicit(&group->token, memory_order_acquire);
		uint64_t state = atomic_load_explicit(&group->state, relaxed);
		struct group_facts facts;

		if (!token || state & CLOSED ||
		    open_number(argument, groups_comm(token)) == token >> 16) {
			strays[i] = 0;
		} else if (strays[i] != token) {
			strays[i] = token;
		} else {
			atomic_fetch_or_explicit(&group->state, SPOILED, relaxed);
			groups_close(groups, token, 0, &facts);
		}
	}
}
