/* SPDX-License-Identifier: Apache-2.0 */
/* laws.h - what holds in a box at any time at which nobody is adding, whatever NCCL told before:
 * nothing is lost, counted twice or made up. For the fuzzer and for test_conserves.c.
 *
 *	told = completed + untimed + in flight + dropped as expired + dropped for want of a slot
 *
 * over all records, the folded ones too; of one communicator in a record of its own
 *
 *	told = completed + untimed + lost + in flight.
 */
#ifndef NCCL_INSPECTOR_LAWS_H
#define NCCL_INSPECTOR_LAWS_H

#include <stdarg.h>
#include <stdio.h>

#include "box/box.h"
#include "hot/state.h"

#pragma GCC diagnostic ignored "-Wunused-function" /* no program needs all of them */

/* What the driver told of communicators that have, or had, a record. */
struct laws_told {
	uint64_t ops, bytes; /* Coll, P2p and CeColl; bytes modulo 2^64 */
	bool calls;          /* CollApi, too: they become untimed operations of their keys only */
	bool races; /* threads met in a full pool: a slot that passed on just then has a channel too
	               many (hot/state.h) */
	bool channels_beyond; /* a channel of 64 or above: it is an implausible event, not an
	                         operation */
};

/* Sums over the tables. */
struct laws_sums {
	uint64_t completed, untimed, lost, in_flight;
	uint64_t ops, bytes, untimed_ops,
	    untimed_bytes; /* of keys, without groups of Sends and Recvs */
	uint64_t bytes_in_flight, group_ops, peer_ops;
	uint64_t labelled[BOX_LABEL_KINDS];
	uint64_t in_flight_of[BOX_LIVE_COMMS]; /* of the communicator that has the record now */
};

static char laws_text[256];

__attribute__((format(printf, 1, 2))) static const char *laws_say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(laws_text, sizeof(laws_text), format, args);
	va_end(args);
	return laws_text;
}

typedef unsigned long long laws_number; /* for printf */

static const char *laws_of_slot(const struct box *box, unsigned slot, bool races,
                                struct laws_sums *sums)
{
	const struct box_op *op = &box->ops[slot];
	uint32_t state = op->generation & BOX_OP_STATE_MASK;

	if (state == BOX_OP_FREE)
		return !races && (op->gpu_start_ns || op->gpu_stop_ns || op->started_channels ||
		                  op->stopped_channels || op->synced_ns)
			   ? laws_say("slot %u is free and has something of its last use", slot)
			   : NULL;
	if (state == BOX_OP_GIVEN_UP)
		return NULL;
	if (state != BOX_OP_USED)
		return laws_say("slot %u is being filled by nobody", slot);
	if (op->comm >= BOX_LIVE_COMMS || (op->key != KEYS_NONE && op->key >= BOX_KEYS))
		return laws_say("slot %u is of record %u and key %u", slot, op->comm, op->key);
	if (!races && op->stopped_channels & ~op->started_channels)
		return laws_say("in slot %u a channel ended that never began", slot);
	sums->in_flight++;
	sums->bytes_in_flight += op->bytes;
	sums->in_flight_of[op->comm] += op->comm_generation == box->comms[op->comm].generation;
	return NULL;
}

static const char *laws_of_key(const struct box *box, unsigned index, struct laws_sums *sums)
{
	const struct box_key *key = &box->keys[index];
	uint64_t ops = key->ops, busy = key->busy_ns, in_buckets = 0;

	if (key->used == 0)
		return NULL;
	if (key->used != 1 || key->comm >= BOX_COMMS ||
	    box->comms[key->comm].state == BOX_COMM_FREE)
		return laws_say("key %u is of record %u, which is nobody's", index, key->comm);
	for (unsigned i = 0; i < HIST_BUCKETS; i++)
		in_buckets += box->hists[index].count[i];
	if (in_buckets != ops || key->begun != ops)
		return laws_say("key %u: %llu operations, %llu begun, %llu in its histogram", index,
		                (laws_number)ops, (laws_number)key->begun, (laws_number)in_buckets);
	if (ops && (!key->min_ns || key->min_ns > key->max_ns || busy < ops * key->min_ns ||
	            busy > ops * key->max_ns))
		return laws_say("key %u: %llu operations of %llu to %llu ns took %llu ns", index,
		                (laws_number)ops, (laws_number)key->min_ns,
		                (laws_number)key->max_ns, (laws_number)busy);
	if (key->phased_ops > ops || key->wait_ns > busy)
		return laws_say("key %u waited longer than it took", index);
	if (key->algo == BOX_ALGO_GROUP) {
		sums->group_ops += ops;
		return NULL;
	}
	sums->ops += ops;
	sums->bytes += key->bytes;
	sums->untimed_ops += key->untimed_ops;
	sums->untimed_bytes += key->untimed_bytes;
	return NULL;
}

static const char *laws_of_comm(const struct box *box, unsigned index, struct laws_sums *sums)
{
	const struct box_comm *comm = &box->comms[index];

	if (comm->state == BOX_COMM_FREE) /* its figures are in a folded record by now */
		return NULL;
	if (comm->busy & 1)
		return laws_say("record %u is left busy", index);
	if (comm->started < comm->completed || comm->started > comm->completed + comm->lost)
		return laws_say("record %u: %llu began, %llu completed, %llu were lost", index,
		                (laws_number)comm->started, (laws_number)comm->completed,
		                (laws_number)comm->lost);
	sums->completed += comm->completed;
	sums->untimed += comm->untimed;
	sums->lost += comm->lost;
	return NULL;
}

static const char *laws_of_label(const struct box *box, unsigned index, struct laws_sums *sums)
{
	const struct box_label *label = &box->labels[index];

	if (!label->used)
		return NULL;
	if (label->used != 1 || label->kind >= BOX_LABEL_KINDS)
		return laws_say("label %u is half made", index);
	if (label->timed_ops > label->ops || (label->ops && label->busy_ns && !label->timed_ops))
		return laws_say("label %u: %llu operations, %llu of them with a time", index,
		                (laws_number)label->ops, (laws_number)label->timed_ops);
	if (label->comm != BOX_LABEL_ALL_COMMS &&
	    (label->comm >= BOX_COMMS || box->comms[label->comm].state == BOX_COMM_FREE))
		return laws_say("label %u is of record %u, which is nobody's", index, label->comm);
	sums->labelled[label->kind] += label->ops;
	return NULL;
}

/* Adds up the tables. NULL, or what is wrong in them already. */
static const char *laws_add_up(const struct box *box, bool races, struct laws_sums *sums)
{
	const char *wrong = box->header->layout_seq & 1 ? "the layout is left half changed" : NULL;

	*sums = (struct laws_sums){ 0 };
	for (unsigned i = 0; i < BOX_OPS && !wrong; i++)
		wrong = laws_of_slot(box, i, races, sums);
	for (unsigned i = 0; i < BOX_KEYS && !wrong; i++)
		wrong = laws_of_key(box, i, sums);
	for (unsigned i = 0; i < BOX_COMMS && !wrong; i++)
		wrong = laws_of_comm(box, i, sums);
	for (unsigned i = 0; i < BOX_PEERS && !wrong; i++) {
		sums->peer_ops += box->peers[i].used == 1 ? box->peers[i].ops : 0;
		if (box->peers[i].begun != box->peers[i].ops)
			wrong = laws_say("peer %u is left half added", i);
	}
	for (unsigned i = 0; i < BOX_LABELS && !wrong; i++)
		wrong = laws_of_label(box, i, sums);
	return wrong;
}

/* What the keys have against what the communicators have. */
static const char *laws_of_sums(const struct box *box, const struct laws_told *told,
                                const struct laws_sums *sums)
{
	uint64_t no_key = box->header->dropped[BOX_DROP_NO_KEY];
	uint64_t given_up =
	    box->header->dropped[BOX_DROP_EXPIRED] + box->header->dropped[BOX_DROP_NO_SLOT];
	uint64_t missing = sums->completed - sums->ops;

	if (told->ops != sums->completed + sums->untimed + sums->in_flight + given_up)
		return laws_say("told of %llu operations: %llu completed, %llu untimed, %llu in "
		                "flight, %llu given up",
		                (laws_number)told->ops, (laws_number)sums->completed,
		                (laws_number)sums->untimed, (laws_number)sums->in_flight,
		                (laws_number)given_up);
	if (sums->ops > sums->completed || missing > no_key)
		return laws_say("%llu completed, %llu of them in keys, %llu without a key",
		                (laws_number)sums->completed, (laws_number)sums->ops,
		                (laws_number)no_key);
	if (!told->calls &&
	    (sums->untimed_ops > sums->untimed || (!no_key && sums->untimed_ops != sums->untimed)))
		return laws_say("%llu untimed, %llu of them in keys", (laws_number)sums->untimed,
		                (laws_number)sums->untimed_ops);
	if (!told->calls && !no_key && !given_up &&
	    sums->bytes + sums->untimed_bytes + sums->bytes_in_flight != told->bytes)
		return laws_say("told of %llu bytes: %llu in keys, %llu untimed, %llu in flight",
		                (laws_number)told->bytes, (laws_number)sums->bytes,
		                (laws_number)sums->untimed_bytes,
		                (laws_number)sums->bytes_in_flight);
	for (unsigned kind = 0; kind < BOX_LABEL_KINDS; kind++)
		if (sums->labelled[kind] > told->ops)
			return laws_say("%llu operations with a label of kind %u, of %llu",
			                (laws_number)sums->labelled[kind], kind,
			                (laws_number)told->ops);
	return sums->peer_ops > sums->ops ? laws_say("more operations with peers than operations")
	                                  : NULL;
}

/* Of one communicator in a record of its own, of which so many operations were told. */
static const char *laws_of_record(const struct box *box, const struct laws_sums *sums,
                                  unsigned index, uint64_t told)
{
	const struct box_comm *comm = &box->comms[index];
	uint64_t in_flight = sums->in_flight_of[index];

	if (told == comm->completed + comm->untimed + comm->lost + in_flight)
		return NULL;
	return laws_say(
	    "record %u was told of %llu: %llu completed, %llu untimed, %llu lost, %llu in flight",
	    index, (laws_number)told, (laws_number)comm->completed, (laws_number)comm->untimed,
	    (laws_number)comm->lost, (laws_number)in_flight);
}

/* The first law that is broken, in words; NULL: none. */
static const char *laws_broken(const struct box *box, const struct laws_told *told,
                               struct laws_sums *sums)
{
	const char *wrong = laws_add_up(box, told->races, sums);

	return wrong ? wrong : laws_of_sums(box, told, sums);
}

#endif
