/* SPDX-License-Identifier: Apache-2.0 */
#include "upkeep/samples.h"

#include <string.h>

#include "base/clock.h"
#include "hot/ends.h"

#define relaxed memory_order_relaxed
/* A communicator's estimate of the clocks' distance is used for so long. It is renewed every 10 s in which an operation
 * ends. */
#define ESTIMATE_NS UINT64_C(30000000000)
#define CLOCK_LOOKS 3u
#define FEW (BOX_SAMPLES - BOX_SAMPLES / 4) /* a full table is thinned out until no more are left */

static uint64_t get(const _Atomic uint64_t *figure)
{
	return atomic_load_explicit(figure, relaxed);
}

static void add_to(_Atomic uint64_t *figure, uint64_t value)
{
	atomic_store_explicit(figure, get(figure) + value, relaxed);
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
		uint64_t before = clock_ticks(), real_ns = clock_ns(CLOCK_REALTIME), past = clock_ticks() - before;

		if (past < closest) {
			closest = past;
			clocks.tick = before + past / 2;
			clocks.real_ns = real_ns;
		}
	}
	clocks.real_ahead_ns =
		(int64_t)(clocks.real_ns - clock_ticks_to_ns(clocks.tick, samples->track->ns_per_tick_q32));
	return clocks;
}

static unsigned gpu_of(const struct samples *samples, unsigned comm)
{
	return samples->box->comms[comm].gpu % BOX_GPUS;
}

/* The distance of the GPU's clock that a communicator has found lately. False: none. */
static bool has_estimate(const struct samples *samples, unsigned comm, uint64_t now_tick, int64_t *ahead_ns)
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

/* Of all communicators of a GPU the smallest distance is nearest to the truth, because each hears of an end only after
 * it. */
static void compare_clocks(struct samples *samples, const struct clocks *now)
{
	bool found[BOX_GPUS] = { false };
	int64_t ahead_ns;

	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++) {
		unsigned number = gpu_of(samples, i);
		struct samples_gpu *gpu = &samples->gpus[number];

		if (!has_estimate(samples, i, now->tick, &ahead_ns) || (found[number] && ahead_ns >= gpu->ahead_ns))
			continue;
		gpu->known = found[number] = true;
		gpu->ahead_ns = ahead_ns;
	}
	for (unsigned i = 0; i < BOX_GPUS; i++)
		if (samples->gpus[i].known && samples->gpus[i].has_union)
			union_set_clock(&samples->states[samples->gpus[i].place], now->real_ns,
					now->real_ahead_ns + samples->gpus[i].ahead_ns);
}

/* The union of a GPU that has something to add; NULL: there are too many. */
static struct union_state *union_of(struct samples *samples, unsigned number, const struct box_sample *end,
				    const struct clocks *now)
{
	struct samples_gpu *gpu = &samples->gpus[number];

	if (!gpu->has_union && samples->unions < BOX_UNIONS) {
		gpu->has_union = true;
		gpu->place = (uint8_t)samples->unions++;
		union_init(&samples->states[gpu->place], &samples->box->unions[gpu->place],
			   &samples->box->header->sample_seq, number);
		if (!gpu->known) /* as if it had ended just now, until something better is known */
			gpu->ahead_ns = (int64_t)(now->real_ns - end->stop_ns) - now->real_ahead_ns;
		union_set_clock(&samples->states[gpu->place], now->real_ns, now->real_ahead_ns + gpu->ahead_ns);
	}
	return gpu->has_union ? &samples->states[gpu->place] : NULL;
}

/* Kinds. */

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
	const struct box_key *key = &samples->box->keys[end->kind % BOX_KEYS];

	if (end->kind >= BOX_KEYS || atomic_load_explicit(&key->used, memory_order_acquire) != 1 || key->comm != comm)
		return 0;
	if (!samples->kinds[end->kind])
		samples->kinds[end->kind] = make_kind(samples, comm, key);
	return samples->kinds[end->kind];
}

/* The table. */

static unsigned length_bits(const struct samples *samples)
{
	return atomic_load_explicit(&samples->box->header->sample_length_bits, relaxed);
}

static unsigned period_bits(const struct samples *samples)
{
	return atomic_load_explicit(&samples->box->header->sample_period_bits, relaxed);
}

/* Unix time of the end of a sample in the table. */
static uint64_t ended_real_ns(const struct samples *samples, const struct box_sample *sample)
{
	unsigned gpu = samples->box->sample_kinds[sample->kind].gpu % BOX_GPUS;

	return sample->stop_ns +
	       (uint64_t)union_ahead_at(&samples->box->unions[samples->gpus[gpu].place], sample->stop_ns);
}

/* How many distinct periods the table has samples of, up to SAMPLES_PERIODS. */
static unsigned count_periods(const struct samples *samples)
{
	uint64_t seen[SAMPLES_PERIODS];
	unsigned count = 0;

	for (uint32_t i = 0; i < BOX_SAMPLES && count < SAMPLES_PERIODS; i++) {
		const struct box_sample *sample = &samples->box->samples[i];
		unsigned at = 0;

		if (!get(&sample->start_ns))
			continue;
		seen[count] = ended_real_ns(samples, sample) >> period_bits(samples);
		while (seen[at] != seen[count])
			at++;
		count += at == count;
	}
	return count;
}

/* Drops what no longer ended in a burst. */
static void drop(struct samples *samples)
{
	struct box_header *header = samples->box->header;
	unsigned length = length_bits(samples), period = period_bits(samples);
	uint64_t kept = 0;

	for (uint32_t i = 0; i < BOX_SAMPLES; i++) {
		struct box_sample *sample = &samples->box->samples[i];

		if (!get(&sample->start_ns))
			continue;
		if (samples_in_burst(ended_real_ns(samples, sample), length, period))
			kept++;
		else
			atomic_store_explicit(&sample->start_ns, 0, relaxed);
	}
	atomic_store_explicit(&header->samples_kept, kept, relaxed);
}

/* Makes bursts shorter or rarer. False: they can be neither. */
static bool thin_out(struct samples *samples)
{
	struct box_header *header = samples->box->header;
	unsigned length = length_bits(samples), period = period_bits(samples);
	unsigned periods = count_periods(samples);

	if (periods < SAMPLES_PERIODS && length > BOX_SAMPLE_LENGTH_BITS_MIN)
		length--;
	else if (periods > 1 && period < BOX_SAMPLE_PERIOD_BITS_MAX)
		period++;
	else
		return false;
	atomic_fetch_add_explicit(&header->sample_seq, 1, memory_order_acq_rel);
	atomic_store_explicit(&header->sample_length_bits, length, relaxed);
	atomic_store_explicit(&header->sample_period_bits, period, relaxed);
	drop(samples);
	atomic_fetch_add_explicit(&header->sample_seq, 1, memory_order_acq_rel);
	return true;
}

/* A free place; NULL where none can be made. */
static struct box_sample *find_place(struct samples *samples)
{
	struct box_header *header = samples->box->header;
	bool can_thin = get(&header->samples_kept) >= BOX_SAMPLES;

	while (can_thin && get(&header->samples_kept) > FEW)
		can_thin = thin_out(samples);
	if (get(&header->samples_kept) >= BOX_SAMPLES)
		return NULL;
	for (uint32_t tries = 0; tries < BOX_SAMPLES; tries++) {
		struct box_sample *place = &samples->box->samples[samples->cursor++ % BOX_SAMPLES];

		if (!get(&place->start_ns))
			return place;
	}
	return NULL;
}

/* Puts an operation that ended in a burst into the table. */
static void keep(struct samples *samples, const struct box_sample *end, uint16_t kind, uint64_t real_ns)
{
	struct box_header *header = samples->box->header;
	struct box_sample *place;

	if (!samples_in_burst(real_ns, length_bits(samples), period_bits(samples)))
		return;
	/* It takes a look at the whole table to find that nothing can be dropped: once in a burst is enough. */
	place = samples->full_burst == real_ns >> BOX_SAMPLE_LENGTH_BITS_MIN ? NULL : find_place(samples);
	if (!place) {
		samples->full_burst = real_ns >> BOX_SAMPLE_LENGTH_BITS_MIN;
		add_to(&header->samples_lost, 1);
		return;
	}
	/* Making room may have ended the burst. */
	if (!samples_in_burst(real_ns, length_bits(samples), period_bits(samples)))
		return;
	place->stop_ns = end->stop_ns;
	place->index = end->index;
	place->kind = kind;
	place->peer = end->peer;
	place->queued_us = end->queued_us;
	place->mantissa = end->mantissa;
	place->flags = end->flags;
	place->channels = end->channels;
	atomic_store_explicit(&place->start_ns, get(&end->start_ns), memory_order_release);
	add_to(&header->samples_kept, 1);
}

/* The round. */

static void take(struct samples *samples, unsigned comm, const struct box_sample *end, const struct clocks *now)
{
	struct union_state *state = union_of(samples, gpu_of(samples, comm), end, now);
	uint16_t kind = state ? kind_of(samples, comm, end) : 0;

	if (state) {
		union_add(state, get(&end->start_ns), end->stop_ns);
		if (kind)
			keep(samples, end, kind - 1,
			     end->stop_ns + (uint64_t)atomic_load_explicit(&state->box->ahead_ns, relaxed));
	}
	if (!kind)
		add_to(&samples->box->header->samples_unkinded, 1);
}

/* Operations without a time since the last look. While all are to be timed, an untimed one has no kernel. */
static void count_lost(struct samples *samples, unsigned comm, const struct clocks *now)
{
	const struct box_comm *record = &samples->box->comms[comm];
	struct samples_comm *last = &samples->comms[comm];
	const struct samples_gpu *gpu = &samples->gpus[gpu_of(samples, comm)];
	uint64_t lost = get(&record->lost), untimed = get(&record->untimed);
	uint32_t dropped = atomic_load_explicit(&samples->track->ends.lost[comm], relaxed);
	uint64_t missing = (uint32_t)(dropped - last->dropped);

	last->dropped = dropped;
	add_to(&samples->box->header->samples_lost, missing);
	if (atomic_load_explicit(&record->state, relaxed) == BOX_COMM_FREE) /* its figures are in a folded one */
		return;
	missing += lost > last->lost ? lost - last->lost : 0;
	if (atomic_load_explicit(&samples->box->header->sampling, relaxed) > 1 && untimed > last->untimed)
		missing += untimed - last->untimed;
	last->lost = lost;
	last->untimed = untimed;
	if (missing && gpu->has_union)
		union_lose(&samples->states[gpu->place], now->real_ns,
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
		samples->comms[i].until = atomic_load_explicit(&samples->box->comms[i].end_place, memory_order_acquire);
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
		if (samples->box->keys[i].comm == comm)
			samples->kinds[i] = 0;
	samples->comms[comm] = (struct samples_comm){ .dropped = samples->comms[comm].dropped };
}

void samples_init(struct samples *samples, struct track *track)
{
	memset(samples, 0, sizeof(*samples));
	samples->track = track;
	samples->box = track->box;
	track->samples = samples;
}
