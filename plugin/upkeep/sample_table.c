/* SPDX-License-Identifier: Apache-2.0 */
#include "upkeep/sample_table.h"

#include <stddef.h>

#include "hot/atomics.h"
#include "hot/ends.h"
#include "upkeep/union.h"

#define relaxed memory_order_relaxed
/* A full table is thinned out until no more are left. */
#define FEW (BOX_SAMPLES - BOX_SAMPLES / 4)

static uint64_t get(const _Atomic uint64_t *figure)
{
	return atomic_load_explicit(figure, relaxed);
}

static unsigned length_bits(const struct sample_table *table)
{
	return atomic_load_explicit(&table->box->header->sample_length_bits, relaxed);
}

static unsigned period_bits(const struct sample_table *table)
{
	return atomic_load_explicit(&table->box->header->sample_period_bits, relaxed);
}

/* Unix time of the end of a sample in the table. */
static uint64_t ended_real_ns(const struct sample_table *table, const struct box_sample *sample)
{
	unsigned gpu = table->box->sample_kinds[sample->kind].gpu % BOX_GPUS;

	return sample->stop_ns +
	       (uint64_t)union_ahead_at(&table->box->unions[table->union_of_gpu[gpu]],
	                                sample->stop_ns);
}

/* How many distinct periods the table has samples of, up to SAMPLE_TABLE_PERIODS. */
static unsigned count_periods(const struct sample_table *table)
{
	uint64_t seen[SAMPLE_TABLE_PERIODS];
	unsigned count = 0;

	for (uint32_t i = 0; i < BOX_SAMPLES && count < SAMPLE_TABLE_PERIODS; i++) {
		const struct box_sample *sample = &table->box->samples[i];
		unsigned at = 0;

		if (!get(&sample->start_ns))
			continue;
		seen[count] = ended_real_ns(table, sample) >> period_bits(table);
		while (seen[at] != seen[count])
			at++;
		count += at == count;
	}
	return count;
}

/* Drops what no longer ended in a burst. */
static void drop(struct sample_table *table)
{
	struct box_header *header = table->box->header;
	unsigned length = length_bits(table), period = period_bits(table);
	uint64_t kept = 0;

	for (uint32_t i = 0; i < BOX_SAMPLES; i++) {
		struct box_sample *sample = &table->box->samples[i];

		if (!get(&sample->start_ns))
			continue;
		if (sample_table_in_burst(ended_real_ns(table, sample), length, period))
			kept++;
		else
			atomic_store_explicit(&sample->start_ns, 0, relaxed);
	}
	atomic_store_explicit(&header->samples_kept, kept, relaxed);
}

/* Makes bursts shorter or rarer. False: they can be neither. */
static bool thin_out(struct sample_table *table)
{
	struct box_header *header = table->box->header;
	unsigned length = length_bits(table), period = period_bits(table);
	unsigned periods = count_periods(table);

	if (periods < SAMPLE_TABLE_PERIODS && length > BOX_SAMPLE_LENGTH_BITS_MIN)
		length--;
	else if (periods > 1 && period < BOX_SAMPLE_PERIOD_BITS_MAX)
		period++;
	else
		return false;
	atomic_fetch_add_explicit(&header->sample_seq, 1, memory_order_acq_rel);
	atomic_store_explicit(&header->sample_length_bits, length, relaxed);
	atomic_store_explicit(&header->sample_period_bits, period, relaxed);
	drop(table);
	atomic_fetch_add_explicit(&header->sample_seq, 1, memory_order_acq_rel);
	return true;
}

/* A free place; NULL where none can be made. */
static struct box_sample *find_place(struct sample_table *table)
{
	struct box_header *header = table->box->header;
	bool can_thin = get(&header->samples_kept) >= BOX_SAMPLES;

	while (can_thin && get(&header->samples_kept) > FEW)
		can_thin = thin_out(table);
	if (get(&header->samples_kept) >= BOX_SAMPLES)
		return NULL;
	for (uint32_t tries = 0; tries < BOX_SAMPLES; tries++) {
		struct box_sample *place = &table->box->samples[table->cursor++ % BOX_SAMPLES];

		if (!get(&place->start_ns))
			return place;
	}
	return NULL;
}

/* Puts an operation that ended in a burst into the table. */
void sample_table_keep(struct sample_table *table, const struct box_sample *end, uint16_t kind,
                       struct sample_queued queued, uint64_t real_ns)
{
	struct box_header *header = table->box->header;
	struct box_sample *place;

	if (!sample_table_in_burst(real_ns, length_bits(table), period_bits(table)))
		return;
	/* It takes a look at the whole table to find that nothing can be dropped: once in a burst
	 * is enough. */
	place =
	    table->full_burst == real_ns >> BOX_SAMPLE_LENGTH_BITS_MIN ? NULL : find_place(table);
	if (!place) {
		table->full_burst = real_ns >> BOX_SAMPLE_LENGTH_BITS_MIN;
		owned_add(&header->samples_lost, 1);
		return;
	}
	/* Making room may have ended the burst. */
	if (!sample_table_in_burst(real_ns, length_bits(table), period_bits(table)))
		return;
	place->stop_ns = end->stop_ns;
	place->index = end->index;
	place->kind = kind;
	place->peer = end->peer;
	place->queued_us = queued.us;
	place->mantissa = end->mantissa;
	place->flags = (uint8_t)((end->flags & ~ENDS_ORDER) | queued.flags);
	place->channels = end->channels;
	atomic_store_explicit(&place->start_ns, get(&end->start_ns), memory_order_release);
	owned_add(&header->samples_kept, 1);
}
