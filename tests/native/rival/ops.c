/* SPDX-License-Identifier: Apache-2.0 */
/* ops.c - the life of an operation, between its first event and its record. */
#include <stdlib.h>
#include <string.h>

#include "rival.h"

#define MAX_CHUNKS 4096

struct pool {
	struct rival_op *free;
	void *chunks[MAX_CHUNKS];
	size_t n_chunks;
};

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool coll_pool, p2p_pool;
static _Atomic uint64_t event_sn;

static bool grow(struct pool *pool, size_t count)
{
	if (pool->n_chunks == MAX_CHUNKS || (pool->n_chunks && !rival_settings.grow))
		return false;
	struct rival_op *chunk = calloc(count, sizeof(*chunk));

	if (!chunk)
		return false;
	pool->chunks[pool->n_chunks++] = chunk;
	for (size_t i = 0; i < count; i++) {
		chunk[i].next = pool->free;
		pool->free = &chunk[i];
	}
	return true;
}

static struct rival_op *take(enum rival_kind kind)
{
	bool p2p = kind == RIVAL_P2P;
	struct pool *pool = p2p ? &p2p_pool : &coll_pool;
	struct rival_op *op = NULL;

	pthread_mutex_lock(&pools_lock);
	if (pool->free || grow(pool, p2p ? rival_settings.p2p_pool : rival_settings.coll_pool)) {
		op = pool->free;
		pool->free = op->next;
	}
	pthread_mutex_unlock(&pools_lock);
	if (!op)
		return NULL;
	memset(op, 0, sizeof(*op));
	pthread_rwlock_init(&op->lock, NULL);
	op->kind = kind;
	return op;
}

/* The caller holds the operation's lock, and nobody gives it back: who comes with an old handle
 * waits for it for ever (S4). */
static void recycle(struct rival_op *op)
{
	struct pool *pool = op->kind == RIVAL_P2P ? &p2p_pool : &coll_pool;

	pthread_mutex_lock(&pools_lock);
	op->next = pool->free;
	pool->free = op;
	pthread_mutex_unlock(&pools_lock);
}

/* Ends the hold of the lock, and with the last reference the operation. One whose kernel events do
 * not all come keeps its reference for ever (S5). */
static void release(struct rival_op *op)
{
	if (--op->refs == 0)
		recycle(op);
	else
		pthread_rwlock_unlock(&op->lock);
}

void rival_pools_free(void)
{
	struct pool *pools[] = { &coll_pool, &p2p_pool };

	for (size_t i = 0; i < 2; i++) {
		for (size_t chunk = 0; chunk < pools[i]->n_chunks; chunk++)
			free(pools[i]->chunks[chunk]);
		memset(pools[i], 0, sizeof(*pools[i]));
	}
}

static size_t type_bytes(const char *type)
{
	static const struct {
		const char *type;
		size_t bytes;
	} types[] = {
		{ "ncclInt8", 1 },    { "ncclInt32", 4 },   { "ncclUint32", 4 },
		{ "ncclInt64", 8 },   { "ncclUint64", 8 },  { "ncclFloat16", 2 },
		{ "ncclFloat32", 4 }, { "ncclFloat64", 8 }, { "ncclBfloat16", 2 },
		{ "ncclFloat8e4m3", 1 }, { "ncclFloat8e5m2", 1 },
	};

	/* No look at NULL: S6. */
	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
		if (!strcmp(type, types[i].type))
			return types[i].bytes;
	return (size_t)-1; /* and with it 2^64 - count bytes: D6 */
}

static bool is_small(size_t bytes)
{
	return bytes < rival_settings.min_bytes || !bytes;
}

void *rival_op_start(struct rival_comm *comm, const struct prof_descr_v5 *descr)
{
	bool p2p = descr->type == PROF_P2P;
	const struct prof_coll_v4 *coll = &descr->coll.base;
	const struct prof_p2p_v4 *peer = &descr->p2p.base;
	uint64_t bytes = p2p ? peer->count * type_bytes(peer->datatype) :
			       coll->count * type_bytes(coll->datatype);

	if (is_small(bytes) || (p2p && !rival_settings.p2p))
		return NULL;
	struct rival_op *op = take(p2p ? RIVAL_P2P : RIVAL_COLL);

	if (!op)
		return NULL;
	op->comm = comm;
	op->refs = 2;
	op->bytes = bytes;
	op->func = p2p ? peer->func : coll->func;
	op->sn = p2p ? __atomic_fetch_add(&comm->p2p_sn, 1, __ATOMIC_RELAXED) : coll->seq;
	op->algo = p2p ? "" : coll->algo;
	op->proto = p2p ? "" : coll->proto;
	op->peer = p2p ? peer->peer : -1;
	op->channels = p2p ? peer->channels : coll->channels;
	op->start_sn = ++event_sn;
	op->start_us = rival_now_us();
	return op;
}

/* The record has room for 64 channels, whatever the operation says: S6. */
static void finish(struct rival_op *op)
{
	struct rival_record record = {
		.p2p = op->kind == RIVAL_P2P,
		.func = op->func,
		.algo = op->algo,
		.proto = op->proto,
		.sn = op->sn,
		.bytes = op->bytes,
		.peer = op->peer,
		.channels = op->channels,
		.start_sn = op->start_sn,
		.stop_sn = op->stop_sn,
		.start_us = op->start_us,
		.stop_us = op->stop_us,
	};

	if (!rival_time(op, &record.time_us, &record.source))
		return;
	for (unsigned i = 0; i < op->channels; i++)
		record.trace[i] = op->channel[i].trace;
	rival_rate(&record, op->comm->nranks);
	rival_ring_push(op->comm, &record);
}

/* No look at the channel's number: S6. */
void *rival_channel_start(const struct prof_descr_v5 *descr)
{
	struct rival_op *op = descr->parent;

	if (!op || op->kind == RIVAL_CHANNEL)
		return NULL;
	struct rival_channel *channel = &op->channel[descr->kernel_ch.channel];

	pthread_rwlock_wrlock(&op->lock);
	channel->kind = RIVAL_CHANNEL;
	channel->op = op;
	channel->channel = descr->kernel_ch.channel;
	channel->started = true;
	channel->gpu_start_ns = descr->kernel_ch.timer_ns;
	channel->first_us = rival_now_us();
	channel->trace.start_sn = ++event_sn;
	channel->trace.start_us = rival_now_us();
	if (!op->started++)
		op->first_kernel_us = channel->first_us;
	pthread_rwlock_unlock(&op->lock);
	return channel;
}

void rival_channel_clock(struct rival_channel *channel, uint64_t gpu_ns)
{
	struct rival_op *op = channel->op;

	pthread_rwlock_wrlock(&op->lock);
	channel->gpu_stop_ns = gpu_ns;
	channel->trace.record_sn = ++event_sn;
	channel->trace.record_us = rival_now_us();
	pthread_rwlock_unlock(&op->lock);
}

void rival_channel_stop(struct rival_channel *channel)
{
	struct rival_op *op = channel->op;

	pthread_rwlock_wrlock(&op->lock);
	channel->stopped = true;
	channel->last_us = rival_now_us();
	channel->trace.stop_sn = ++event_sn;
	channel->trace.stop_us = rival_now_us();
	op->last_kernel_us = channel->last_us;
	if (++op->stopped == op->channels && op->started == op->channels) {
		finish(op);
		release(op);
	} else {
		pthread_rwlock_unlock(&op->lock);
	}
}

void rival_op_stop(struct rival_op *op)
{
	pthread_rwlock_wrlock(&op->lock);
	op->stop_sn = ++event_sn;
	op->stop_us = rival_now_us();
	release(op);
}
