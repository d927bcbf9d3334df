/* SPDX-License-Identifier: Apache-2.0 */
#include "upkeep/comms.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/printable.h"
#include "hot/atomics.h"
#include "hot/complete.h"
#include "hot/follow.h"
#include "hot/keys.h"
#include "hot/labels.h"
#include "hot/owner.h"
#include "hot/peers.h"
#include "nccl/strings.h"
#include "upkeep/samples.h"

#define relaxed memory_order_relaxed
#define FEW_KEYS 64u /* left: then destroyed communicators give theirs back */
#define ENTER_TRIES 1000

static uint32_t state_of(const struct box_comm *comm)
{
	return atomic_load_explicit(&comm->state, relaxed);
}

static bool are_alike(const struct box_comm *a, const struct box_comm *b)
{
	return a->nranks == b->nranks && a->nnodes == b->nnodes && a->rank == b->rank &&
	       !strcmp(a->name, b->name);
}

static unsigned others_record(struct box *box)
{
	printable_copy(box->comms[BOX_COMM_OTHERS].name, sizeof(box->comms->name), "(others)");
	return BOX_COMM_OTHERS;
}

/* The record that collects communicators like this one. */
static unsigned folded_record(struct box *box, const struct box_comm *comm)
{
	unsigned unused = BOX_COMMS;

	for (unsigned i = BOX_LIVE_COMMS; i < BOX_COMM_MORE; i++) {
		if (state_of(&box->comms[i]) == BOX_COMM_FREE)
			unused = unused < i ? unused : i;
		else if (are_alike(&box->comms[i], comm))
			return i;
	}
	if (unused == BOX_COMMS)
		return others_record(box);
	struct box_comm *folded = &box->comms[unused];

	folded->id = comm->id;
	folded->nranks = comm->nranks;
	folded->nnodes = comm->nnodes;
	folded->rank = comm->rank;
	folded->gpu = comm->gpu;
	folded->created_real_ns = comm->created_real_ns;
	memcpy(folded->name, comm->name, sizeof(folded->name));
	return unused;
}

static void add_to(_Atomic uint64_t *to, _Atomic uint64_t *from)
{
	atomic_fetch_add_explicit(to, atomic_load_explicit(from, relaxed), relaxed);
}

/* A thread that has a communicator to itself leaves it within microseconds, if it gets to run. */
static bool enter_patiently(struct box_comm *comm)
{
	for (unsigned tries = 0; tries < ENTER_TRIES; tries++) {
		if (comm_enter(comm))
			return true;
		sched_yield();
	}
	return false;
}

/* Adds what one record counted to another. */
static void add_counts(struct box_comm *to, struct box_comm *from)
{
	add_to(&to->enqueued, &from->enqueued);
	add_to(&to->started, &from->started);
	add_to(&to->completed, &from->completed);
	add_to(&to->untimed, &from->untimed);
	add_to(&to->lost, &from->lost);
	add_to(&to->looks, &from->looks);
	owned_raise(&to->last_progress_tick,
	            atomic_load_explicit(&from->last_progress_tick, relaxed));
	if (to->destroyed_real_ns < from->destroyed_real_ns)
		to->destroyed_real_ns = from->destroyed_real_ns;
}

static bool fold(struct track *track, unsigned index)
{
	struct box *box = track->box;
	struct box_comm *comm = &box->comms[index];

	if (!enter_patiently(comm))
		return false;
	track_settle_comm(track, comm);
	if (track->samples)
		samples_end_comm(track->samples, index);
	unsigned to = folded_record(box, comm);
	struct box_comm *folded = &box->comms[to];

	atomic_fetch_add(&box->header->layout_seq, 1);
	/* First of all: from here on nothing of this communicator is added to its keys. */
	atomic_fetch_add(&comm->generation, 1);
	track_end_comm(track, index);
	keys_fold(&track->keys, box, index, to);
	labels_fold(box, index, to);
	peers_forget(&track->peers, box, index);
	owned_raise(&comm->enqueued, atomic_load_explicit(&comm->completed, relaxed) +
	                                 atomic_load_explicit(&comm->untimed, relaxed) +
	                                 atomic_load_explicit(&comm->lost, relaxed));
	add_counts(folded, comm);
	folded->folded++;
	atomic_store_explicit(&folded->state, BOX_COMM_FOLDED, memory_order_release);
	atomic_store_explicit(&comm->state, BOX_COMM_FREE, memory_order_release);
	atomic_fetch_add(&box->header->layout_seq, 1);
	comm_leave(comm);
	return true;
}

static bool has_few_keys(const struct track *track)
{
	return atomic_load(&track->keys.taken) > KEYS_OWN - FEW_KEYS;
}

/* Puts the oldest folded record to "(others)": of communicators that all have other names, each
 * keeps its keys, and the living would find none. Returns whether there was one. */
static bool fold_further(struct track *track)
{
	struct box *box = track->box;
	struct box_comm *oldest = NULL;

	for (unsigned i = BOX_LIVE_COMMS; i < BOX_COMM_MORE; i++) {
		struct box_comm *folded = &box->comms[i];

		if (state_of(folded) == BOX_COMM_FOLDED &&
		    (!oldest || folded->destroyed_real_ns < oldest->destroyed_real_ns))
			oldest = folded;
	}
	if (!oldest)
		return false;
	unsigned to = others_record(box);

	atomic_fetch_add(&box->header->layout_seq, 1);
	keys_fold(&track->keys, box, (unsigned)(oldest - box->comms), to);
	labels_fold(box, (unsigned)(oldest - box->comms), to);
	add_counts(&box->comms[to], oldest);
	box->comms[to].folded += oldest->folded;
	atomic_store_explicit(&box->comms[to].state, BOX_COMM_FOLDED, memory_order_release);
	atomic_store_explicit(&oldest->state, BOX_COMM_FREE, memory_order_release);
	memset(oldest->name, 0, sizeof(oldest->name));
	oldest->destroyed_real_ns = oldest->folded = 0;
	atomic_store_explicit(&oldest->enqueued, 0, relaxed);
	atomic_store_explicit(&oldest->started, 0, relaxed);
	atomic_store_explicit(&oldest->completed, 0, relaxed);
	atomic_store_explicit(&oldest->untimed, 0, relaxed);
	atomic_store_explicit(&oldest->lost, 0, relaxed);
	atomic_store_explicit(&oldest->looks, 0, relaxed);
	atomic_store_explicit(&oldest->last_progress_tick, 0, relaxed);
	atomic_fetch_add(&box->header->layout_seq, 1);
	return true;
}

/* The record of the communicator that was destroyed first, but for those `without`; UINT32_MAX for
 * none. */
static unsigned oldest_destroyed(const struct box *box, const bool without[BOX_LIVE_COMMS])
{
	unsigned oldest = UINT32_MAX;

	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		if (state_of(&box->comms[i]) == BOX_COMM_DESTROYED && !without[i] &&
		    (oldest == UINT32_MAX ||
		     box->comms[i].destroyed_real_ns < box->comms[oldest].destroyed_real_ns))
			oldest = i;
	return oldest;
}

/* A free record, UINT32_MAX when all live. Makes room where there is little: for records and for
 * keys. */
static unsigned find_record(struct track *track)
{
	struct box *box = track->box;
	unsigned free_record = UINT32_MAX, oldest;
	bool busy[BOX_LIVE_COMMS] = { false }; /* a late end is being added just there */

	for (;;) {
		for (unsigned i = BOX_LIVE_COMMS; i-- > 0;)
			if (state_of(&box->comms[i]) == BOX_COMM_FREE)
				free_record = i;
		oldest = oldest_destroyed(box, busy);
		if (oldest == UINT32_MAX || (free_record != UINT32_MAX && !has_few_keys(track)))
			break;
		if (!fold(track, oldest))
			busy[oldest] = true;
	}
	while (has_few_keys(track) && fold_further(track))
		;
	return free_record;
}

void *comms_add(struct track *track, const struct comm_fields *fields)
{
	struct box *box = track->box;
	unsigned index = find_record(track);
	uint32_t generation;

	atomic_fetch_add_explicit(&box->header->comms_created, 1, relaxed);
	if (index == UINT32_MAX)
		return handle_context_beyond();
	struct box_comm *comm = &box->comms[index];

	atomic_fetch_add(&box->header->layout_seq, 1);
	comm->id = fields->id;
	comm->nranks = fields->nranks;
	comm->nnodes = fields->nnodes;
	comm->rank = fields->rank;
	comm->gpu = fields->gpu;
	comm->created_real_ns = clock_ns(CLOCK_REALTIME);
	comm->destroyed_real_ns = 0;
	comm->folded = 0;
	printable_copy(comm->name, sizeof(comm->name), fields->name);
	atomic_store_explicit(&comm->named, fields->rank >= 0, relaxed);
	atomic_store_explicit(&comm->enqueued, 0, relaxed);
	atomic_store_explicit(&comm->untimed, 0, relaxed);
	atomic_store_explicit(&comm->lost, 0, relaxed);
	atomic_store_explicit(&comm->looks, 0, relaxed);
	atomic_store_explicit(&comm->started, 0, relaxed);
	atomic_store_explicit(&comm->completed, 0, relaxed);
	atomic_store_explicit(&comm->last_sequence, 0, relaxed);
	atomic_store_explicit(&comm->last_progress_tick, 0, relaxed);
	atomic_store_explicit(&comm->clock_since_tick, 0, relaxed);
	atomic_store_explicit(&comm->clock_ahead_ns, 0, relaxed);
	atomic_store_explicit(&comm->clock_ahead_before_ns, 0, relaxed);
	strings_forget(); /* libnccl may be another one by now */
	generation = atomic_fetch_add_explicit(&comm->generation, 1, relaxed) + 1;
	track_new_comm(track, index, handle_context(index, generation));
	atomic_store_explicit(&comm->state, BOX_COMM_LIVE, memory_order_release);
	atomic_fetch_add(&box->header->layout_seq, 1);
	return handle_context(index, generation);
}

void comms_remove(struct track *track, const void *context)
{
	uint32_t generation;
	unsigned index = handle_context_comm(context, &generation);
	struct box *box = track->box;

	if (!context)
		return;
	atomic_fetch_add_explicit(&box->header->comms_destroyed, 1, relaxed);
	if (index == UINT32_MAX)
		return;
	struct box_comm *comm = &box->comms[index];

	if (state_of(comm) != BOX_COMM_LIVE ||
	    atomic_load_explicit(&comm->generation, relaxed) != generation)
		return;
	comm->destroyed_real_ns = clock_ns(CLOCK_REALTIME);
	atomic_store_explicit(&comm->state, BOX_COMM_DESTROYED, memory_order_release);
}
