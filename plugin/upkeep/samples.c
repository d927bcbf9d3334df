/* SPDX-License-Identifier: Apache-2.0 */
#include "upkeep/samples.h"

#include <string.h>

#include "base/clock.h"
#include "hot/atomics.h"
#include "hot/ends.h"

#define relaxed memory_order_relaxed
/* A communicator's estimate of the clocks' distance is used for so long. It is renewed every 10 s
 * in which an operation ends. */
#define ESTIMATE_NS UINT64_C(30000000000)
#define CLOCK_LOOKS 3u
/* Which operations get about the time of their call: those that begin so long after the one before
 * them on their communicator has ended. What a rank delays for long is one of them. */
#define GAP_NS 100000000u
/* The records of a group's members and of the group begin so close together. */
#define SAME_BEGIN_NS 1000000ull

static uint64_t get(const _Atomic uint64_t *figure)
{
	return atomic_load_explicit(figure, relaxed);
}

/* The two clocks of this host, read together. */
struct clocks {
	uint64_t tick, real_ns;
	int64_t real_ahead_ns; /* of CLOCK_REALTIME before our clock */
};

/* Another thread may run between the two looks: the closest of some counts. */
static struct clocks read_clocks(const struct samples *samples)
{
	struct clocks clocks = { 0 };
	uint64_t closest = UINT64_MAX;

	for (unsigned i = 0; i < CLOCK_LOOKS; i++) {
		uint64_t before = clock_ticks(), real_ns = clock_ns(CLOCK_REALTIME),
			 past = clock_ticks() - before;

		if (past < closest) {
			closest = past;
			clocks.tick = before + past / 2;
			clocks.real_ns = real_ns;
		}
	}
	clocks.real_ahead_ns =
	    (int64_t)(clocks.real_ns -
	              clock_ticks_to_ns(clocks.tick, samples->track->ns_per_tick_q32));
	return clocks;
}

static unsigned gpu_of(const struct samples *samples, unsigned comm)
{
	return samples->box->comms[comm].gpu % BOX_GPUS;
}

/* The union of a GPU that has one. */
static struct union_state *state_of(struct samples *samples, unsigned number)
{
	return &samples->states[samples->table.union_of_gpu[number]];
}

/* The distance of the GPU's clock that a communicator has found lately. False: none. */
static bool has_estimate(const struct samples *samples, unsigned comm, uint64_t now_tick,
                         int64_t *ahead_ns)
{
	const struct box_comm *record = &samples->box->comms[comm];
	uint64_t since = get(&record->clock_since_tick);
	int64_t least = atomic_load_explicit(&record->clock_ahead_ns, relaxed);
	int64_t before = atomic_load_explicit(&record->clock_ahead_before_ns, relaxed);

	*ahead_ns = before < least ? before : least;
	return atomic_load_explicit(&record->state, relaxed) != BOX_COMM_FREE && since &&
	       ((int64_t)(now_tick - since) < 0 ||
	        clock_ticks_to_ns(now_tick - since, samples->track->ns_per_tick_q32) < ESTIMATE_NS);
}

/* Of all communicators of a GPU the smallest distance is nearest to the truth, because each hears
 * of an end only after it. */
static void compare_clocks(struct samples *samples, const struct clocks *now)
{
	bool found[BOX_GPUS] = { false };
	int64_t ahead_ns;

	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++) {
		unsigned number = gpu_of(samples, i);
		struct samples_gpu *gpu = &samples->gpus[number];

		if (!has_estimate(samples, i, now->tick, &ahead_ns) ||
		    (found[number] && ahead_ns >= gpu->ahead_ns))
			continue;
		gpu->known = found[number] = true;
		gpu->ahead_ns = ahead_ns;
	}
	for (unsigned i = 0; i < BOX_GPUS; i++)
		if (samples->gpus[i].known && samples->gpus[i].has_union)
			union_set_clock(state_of(samples, i), now->real_ns,
			                now->real_ahead_ns + samples->gpus[i].ahead_ns);
}

/* The union of a GPU that has something to add; NULL: there are too many. */
static struct union_state *union_of(struct samples *samples, unsigned number,
                                    const struct box_sample *end, const struct clocks *now)
{
	struct samples_gpu *gpu = &samples->gpus[number];

	if (!gpu->has_union && samples->unions < BOX_UNIONS) {
		gpu->has_union = true;
		samples->table.union_of_gpu[number] = (uint8_t)samples->unions;
		union_init(state_of(samples, number), &samples->box->unions[samples->unions++],
		           &samples->box->header->sample_seq, number);
		if (!gpu->known) /* as if it had ended just now, until something better is known */
			gpu->ahead_ns = (int64_t)(now->real_ns - end->stop_ns) - now->real_ahead_ns;
		union_set_clock(state_of(samples, number), now->real_ns,
		                now->real_ahead_ns + gpu->ahead_ns);
	}
	return gpu->has_union ? state_of(samples, number) : NULL;
}

static uint32_t used(const struct box_sample_kind *kind)
{
	return atomic_load_explicit(&kind->used, relaxed);
}

/* Which communicator of its id and rank it is: one more than the last of which a kind tells. */
static void know_comm(struct samples *samples, unsigned comm)
{
	const struct box_comm *record = &samples->box->comms[comm];

	samples->comms[comm].known = true;
	samples->comms[comm].incarnation = 0;
	for (unsigned i = 0; i < BOX_SAMPLE_KINDS && used(&samples->box->sample_kinds[i]); i++) {
		const struct box_sample_kind *kind = &samples->box->sample_kinds[i];

		if (kind->comm_id == record->id && kind->rank == record->rank &&
		    kind->incarnation >= samples->comms[comm].incarnation)
			samples->comms[comm].incarnation = kind->incarnation + 1;
	}
}

/* Returns the index of a new kind for a key, + 1; 0 where there is no room. */
static uint16_t make_kind(struct samples *samples, unsigned comm, const struct box_key *key)
{
	const struct box_comm *record = &samples->box->comms[comm];
	unsigned place = 0;

	while (place < BOX_SAMPLE_KINDS && used(&samples->box->sample_kinds[place]))
		place++;
	if (place == BOX_SAMPLE_KINDS)
		return 0;
	if (!samples->comms[comm].known)
		know_comm(samples, comm);
	struct box_sample_kind *kind = &samples->box->sample_kinds[place];

	kind->comm_id = record->id;
	kind->created_real_ns = record->created_real_ns;
	kind->nranks = record->nranks;
	kind->nnodes = record->nnodes;
	kind->rank = record->rank;
	kind->gpu = record->gpu;
	kind->incarnation = samples->comms[comm].incarnation;
	kind->func = key->func;
	kind->size_class = key->size_class;
	kind->algo = key->algo;
	kind->proto = key->proto;
	memcpy(kind->name, record->name, sizeof(kind->name));
	atomic_store_explicit(&kind->used, 1, memory_order_release);
	return (uint16_t)(place + 1);
}

/* Returns the index of the kind of an operation, + 1, or 0 if it has none. */
static uint16_t kind_of(struct samples *samples, unsigned comm, const struct box_sample *end)
{
	const struct box_key *key = keys_of_comm(samples->box, end->kind, comm);

	if (!key)
		return 0;
	if (!samples->kinds[end->kind])
		samples->kinds[end->kind] = make_kind(samples, comm, key);
	return samples->kinds[end->kind];
}

/* Whether an operation begins long after the one before it has ended. */
static bool is_after_gap(struct samples_comm *comm, const struct box_sample *end)
{
	uint64_t start = get(&end->start_ns);
	bool is_joint = end->peer || end->flags & BOX_SAMPLE_GROUP;
	bool is_long = start > comm->stop_ns + GAP_NS ||
	               (is_joint && start - comm->after_gap_ns + SAME_BEGIN_NS < 2 * SAME_BEGIN_NS);

	if (is_long)
		comm->after_gap_ns = start;
	if (end->stop_ns > comm->stop_ns)
		comm->stop_ns = end->stop_ns;
	return is_long;
}

/* In ms, as a power of two; BOX_SAMPLE_AT_LEAST: no such power fits. */
static unsigned within(uint64_t ns)
{
	unsigned bits = 1;

	while (bits < BOX_SAMPLE_AT_LEAST && ns > 1000000ull << bits)
		bits++;
	return bits;
}

/* About how long an operation was queued whose call was not timed, for queued_us and flags. */
static struct sample_queued about(const struct samples *samples, unsigned comm,
                                  const struct box_sample *end)
{
	const struct samples_gpu *gpu = &samples->gpus[gpu_of(samples, comm)];
	uint64_t least_tick, most_tick, scale = samples->track->ns_per_tick_q32;

	if (!gpu->known ||
	    !call_times_find(&samples->calls, comm, end->queued_us, &least_tick, &most_tick))
		return (struct sample_queued){ 0 };
	uint64_t began_ns = get(&end->start_ns) + (uint64_t)gpu->ahead_ns;
	uint64_t least_ns = clock_ticks_to_ns(least_tick, scale);
	uint64_t most_ns = clock_ticks_to_ns(most_tick, scale);

	unsigned bits = least_tick ? within(most_ns - least_ns) : BOX_SAMPLE_AT_LEAST;
	uint64_t called_ns = bits == BOX_SAMPLE_AT_LEAST ? most_ns : least_ns;
	uint64_t queued_us = called_ns < began_ns ? (began_ns - called_ns) / 1000 + 1 : 1;

	return (struct sample_queued){ queued_us < UINT32_MAX ? (uint32_t)queued_us : UINT32_MAX,
	                               (uint8_t)(bits << BOX_SAMPLE_WITHIN_SHIFT) };
}

static struct sample_queued queued_of(struct samples *samples, unsigned comm,
                                      const struct box_sample *end)
{
	bool after_gap = is_after_gap(&samples->comms[comm], end);

	if (!(end->flags & ENDS_ORDER))
		return (struct sample_queued){ end->queued_us, 0 };
	return after_gap ? about(samples, comm, end) : (struct sample_queued){ 0 };
}

static void take(struct samples *samples, unsigned comm, const struct box_sample *end,
                 const struct clocks *now)
{
	struct union_state *state = union_of(samples, gpu_of(samples, comm), end, now);
	uint16_t kind = state ? kind_of(samples, comm, end) : 0;
	struct sample_queued queued = queued_of(samples, comm, end);

	if (state) {
		union_add(state, get(&end->start_ns), end->stop_ns);
		if (kind)
			sample_table_keep(&samples->table, end, kind - 1, queued,
			                  end->stop_ns + (uint64_t)atomic_load_explicit(
							     &state->box->ahead_ns, relaxed));
	}
	if (!kind)
		owned_add(&samples->box->header->samples_unkinded, 1);
}

/* Operations without a time since the last look. While all are to be timed, an untimed one has no
 * kernel. */
static void count_lost(struct samples *samples, unsigned comm, const struct clocks *now)
{
	const struct box_comm *record = &samples->box->comms[comm];
	struct samples_comm *last = &samples->comms[comm];
	const struct samples_gpu *gpu = &samples->gpus[gpu_of(samples, comm)];
	uint64_t lost = get(&record->lost), untimed = get(&record->untimed);
	uint32_t dropped = atomic_load_explicit(&samples->track->ends.lost[comm], relaxed);
	uint64_t missing = (uint32_t)(dropped - last->dropped);

	last->dropped = dropped;
	owned_add(&samples->box->header->samples_lost, missing);
	/* Its figures are in a folded one. */
	if (atomic_load_explicit(&record->state, relaxed) == BOX_COMM_FREE)
		return;
	missing += lost > last->lost ? lost - last->lost : 0;
	if (atomic_load_explicit(&samples->box->header->sampling, relaxed) > 1 &&
	    untimed > last->untimed)
		missing += untimed - last->untimed;
	last->lost = lost;
	last->untimed = untimed;
	if (missing && gpu->has_union)
		union_lose(state_of(samples, gpu_of(samples, comm)), now->real_ns,
		           missing < UINT32_MAX ? (uint32_t)missing : UINT32_MAX);
}

/* The communicators with operations that are over, and when the oldest one of each was. */
struct heads {
	unsigned count;
	uint8_t comms[BOX_LIVE_COMMS];
	uint64_t stop_ns[BOX_LIVE_COMMS];
};

static const struct box_sample *peek(struct samples *samples, unsigned comm)
{
	return ends_peek(&samples->track->ends, comm, samples->comms[comm].until);
}

static void find_heads(struct samples *samples, struct heads *heads)
{
	heads->count = 0;
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++) {
		samples->comms[i].until =
		    atomic_load_explicit(&samples->box->comms[i].end_place, memory_order_acquire);
		const struct box_sample *end = peek(samples, i);

		if (!end)
			continue;
		heads->comms[heads->count] = (uint8_t)i;
		heads->stop_ns[heads->count++] = end->stop_ns;
	}
}

static unsigned oldest_head(const struct heads *heads)
{
	unsigned oldest = 0;

	for (unsigned i = 1; i < heads->count; i++)
		if (heads->stop_ns[i] < heads->stop_ns[oldest])
			oldest = i;
	return oldest;
}

unsigned samples_round(struct samples *samples)
{
	const struct clocks now = read_clocks(samples);
	struct heads heads;
	unsigned taken = 0;

	find_heads(samples, &heads);
	call_times_note(&samples->calls, samples->track); /* all that is over has been called */
	compare_clocks(samples, &now);
	/* About in the order of their ends: then a union needs few gaps. */
	while (heads.count) {
		unsigned at = oldest_head(&heads);

		take(samples, heads.comms[at], peek(samples, heads.comms[at]), &now);
		ends_release(&samples->track->ends, heads.comms[at]);
		taken++;
		const struct box_sample *next = peek(samples, heads.comms[at]);

		if (next) {
			heads.stop_ns[at] = next->stop_ns;
			continue;
		}
		heads.comms[at] = heads.comms[--heads.count];
		heads.stop_ns[at] = heads.stop_ns[heads.count];
	}
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		count_lost(samples, i, &now);
	return taken;
}

void samples_end_comm(struct samples *samples, unsigned comm)
{
	samples_round(samples);
	for (unsigned i = 0; i < BOX_KEYS; i++)
		if (keys_of_comm(samples->box, i, comm))
			samples->kinds[i] = 0;
	call_times_forget(&samples->calls, comm);
	samples->comms[comm] = (struct samples_comm){ .dropped = samples->comms[comm].dropped };
}

void samples_init(struct samples *samples, struct track *track)
{
	memset(samples, 0, sizeof(*samples));
	samples->track = track;
	samples->box = samples->table.box = track->box;
	track->samples = samples;
}
