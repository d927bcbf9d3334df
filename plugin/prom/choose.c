/* SPDX-License-Identifier: Apache-2.0 */
#include "prom/choose.h"

#include <string.h>

#include "box/bandwidth.h"
#include "hot/keys.h"
#include "hot/labels.h"

#define relaxed memory_order_relaxed
/* With the first GPU only; one more with network detail. */
#define PROCESS_SERIES (9u + BOX_DROPS)
#define GPU_SERIES 1u
#define COMM_SERIES 7u
#define TIMED_SERIES 5u   /* of a key with operations that have a time */
#define UNTIMED_SERIES 2u /* of one with others */
#define PHASED_SERIES 2u
#define NET_SERIES 4u
#define LABEL_SERIES 3u
#define LARGEST_WEIGHT ((1ull << 54) - 1)

_Static_assert(BOX_COMMS <= PROM_ROWS && BOX_KEYS <= PROM_ROWS && BOX_NETS <= PROM_ROWS,
               "a row of every table");

struct candidates { /* in the order of their rows */
	unsigned count;
	uint64_t rank[PROM_ROWS]; /* the larger first; no two are equal, none is 0 */
	uint16_t row[PROM_ROWS];
	uint8_t series[PROM_ROWS];
};

static void add_candidate(struct candidates *all, unsigned row, uint64_t weight, unsigned series)
{
	if (weight > LARGEST_WEIGHT)
		weight = LARGEST_WEIGHT;
	all->rank[all->count] = weight << 9 | (2 * PROM_ROWS - 1 - row);
	all->row[all->count] = (uint16_t)row;
	all->series[all->count] = (uint8_t)series;
	all->count++;
}

static unsigned count_series(const struct candidates *all, uint64_t least)
{
	unsigned series = 0;

	for (unsigned i = 0; i < all->count; i++)
		series += all->rank[i] >= least ? all->series[i] : 0;
	return series;
}

/* The largest rank from which on there is more than room for; 0: there is room for all. */
static uint64_t find_limit(const struct candidates *all, unsigned room)
{
	uint64_t limit = 0;

	if (count_series(all, 0) <= room)
		return 0;
	for (uint64_t bit = 1ull << 63; bit; bit >>= 1)
		if (count_series(all, limit | bit) > room)
			limit |= bit;
	return limit;
}

/* Takes the first by rank until one finds no room. Returns how many series were left out, *room
 * gets what is left. */
static unsigned choose(const struct candidates *all, unsigned *room, struct prom_rows *chosen)
{
	uint64_t limit = find_limit(all, *room);
	unsigned left_out = 0;

	chosen->count = 0;
	for (unsigned i = 0; i < all->count; i++) {
		if (all->rank[i] > limit) {
			chosen->row[chosen->count++] = all->row[i];
			*room -= all->series[i];
		} else {
			left_out += all->series[i];
		}
	}
	return left_out;
}

/* Two records of equal id and rank would have equal labels: the newer one has the series. */
static bool is_hidden_by(const struct box_comm *comm, const struct box_comm *other)
{
	return other != comm && other->id == comm->id && other->rank == comm->rank &&
	       (other->created_real_ns > comm->created_real_ns ||
	        (other->created_real_ns == comm->created_real_ns && other > comm));
}

/* Marks the communicators that may have series; returns how many more there are. */
static unsigned find_comms(const struct box *box, unsigned gpu, bool *visible)
{
	const struct box_comm *found[BOX_LIVE_COMMS];
	unsigned count = 0, hidden = 0;

	memset(visible, 0, BOX_COMMS * sizeof(*visible));
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++) {
		uint32_t state = atomic_load_explicit(&box->comms[i].state, memory_order_acquire);

		/* What is being named just now has series in the next text. */
		if (box->comms[i].gpu == gpu &&
		    (state == BOX_COMM_LIVE || state == BOX_COMM_DESTROYED) &&
		    atomic_load_explicit(&box->comms[i].named, memory_order_acquire) !=
		        BOX_COMM_BEING_NAMED)
			found[count++] = &box->comms[i];
	}
	/* All GPUs' together: in the first one's file. */
	visible[BOX_COMM_MORE] =
	    !gpu && atomic_load_explicit(&box->comms[BOX_COMM_MORE].state, memory_order_acquire);
	for (unsigned i = 0; i < count; i++) {
		unsigned other = 0;

		while (other < count && !is_hidden_by(found[i], found[other]))
			other++;
		visible[found[i] - box->comms] = other == count;
		hidden += other < count;
	}
	return hidden;
}

static void rank_comms(const struct box *box, const bool *visible, struct candidates *all)
{
	all->count = 0;
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		if (visible[i])
			add_candidate(all, i,
			              atomic_load_explicit(&box->comms[i].enqueued, relaxed),
			              COMM_SERIES);
}

static void rank_nets(const struct box *box, const bool *visible, struct candidates *all)
{
	all->count = 0;
	for (unsigned i = 0; i < BOX_NETS; i++) {
		const struct box_net *net = &box->nets[i];
		uint64_t weight = 0;

		if (atomic_load_explicit(&net->used, memory_order_acquire) != 1 ||
		    net->comm >= BOX_COMMS || !visible[net->comm] ||
		    atomic_load_explicit(&box->comms[net->comm].generation, relaxed) !=
		        net->comm_generation)
			continue;
		for (unsigned state = 0; state < BOX_NET_STATES; state++)
			weight += atomic_load_explicit(&net->ns[state], relaxed);
		add_candidate(all, i, weight, NET_SERIES);
	}
}

/* Several places of one label have one series: the first one's. */
static bool is_repeated(const struct box *box, unsigned index)
{
	for (unsigned i = 0; i < index; i++)
		if (labels_are_same(&box->labels[i], &box->labels[index]))
			return true;
	return false;
}

static void rank_labels(const struct box *box, unsigned gpu, const bool *visible,
                        struct candidates *all)
{
	all->count = 0;
	for (unsigned i = 0; i < BOX_LABELS; i++) {
		const struct box_label *label = &box->labels[i];
		uint64_t weight = atomic_load_explicit(&label->ops, relaxed) +
		                  atomic_load_explicit(&label->called_ops, relaxed);
		uint32_t comm = atomic_load_explicit(&label->comm, relaxed);

		if (atomic_load_explicit(&label->used, memory_order_acquire) != KEY_VALID ||
		    is_repeated(box, i))
			continue;
		if (label->kind == BOX_LABEL_ROOT ? comm < BOX_COMMS && visible[comm] : !gpu)
			add_candidate(all, i, weight, LABEL_SERIES);
	}
}

static void rank_keys(const struct prom *prom, const bool *visible, struct candidates *all)
{
	all->count = 0;
	for (unsigned i = 0; i < BOX_KEYS; i++) {
		const struct box_key *key = &prom->box->keys[i];
		/* What is not used is not looked at: a thread may be filling it in. */
		bool has_rate =
		    prom->now[i].ops &&
		    bandwidth_bus_factor(key->func, prom->box->comms[key->comm].nranks) > 0;
		unsigned series = (prom->now[i].ops ? TIMED_SERIES - !has_rate : 0) +
		                  (prom->more[i].untimed_ops ? UNTIMED_SERIES : 0) +
		                  (prom->more[i].phased_ops ? PHASED_SERIES : 0);

		if (series && visible[key->comm] &&
		    (2ull << key->size_class) > prom->config->min_bytes)
			add_candidate(all, i, prom->now[i].busy_ns, series);
	}
}

void prom_choose(struct prom *prom, unsigned gpu)
{
	bool has_net = atomic_load_explicit(&prom->box->header->net_on, relaxed);
	unsigned room = PROM_MAX_SERIES - GPU_SERIES - (gpu ? 0 : PROCESS_SERIES + has_net);
	unsigned comm_room = COMM_SERIES * PROM_MAX_COMMS, net_room = PROM_MAX_NET,
		 label_room = PROM_MAX_LABELS, left_out;
	struct candidates all;
	bool visible[BOX_COMMS];

	left_out = COMM_SERIES * find_comms(prom->box, gpu, visible);
	rank_comms(prom->box, visible, &all);
	left_out += choose(&all, &comm_room, &prom->comms);
	rank_nets(prom->box, visible, &all);
	left_out += choose(&all, &net_room, &prom->nets);
	rank_labels(prom->box, gpu, visible, &all);
	left_out += choose(&all, &label_room, &prom->labels);
	room -= COMM_SERIES * prom->comms.count + NET_SERIES * prom->nets.count +
	        LABEL_SERIES * prom->labels.count;
	rank_keys(prom, visible, &all);
	left_out += choose(&all, &room, &prom->keys);
	atomic_fetch_add_explicit(&prom->box->header->series_dropped, left_out, relaxed);
}
