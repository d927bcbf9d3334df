/* SPDX-License-Identifier: Apache-2.0 */
/* ops.c - the life of an operation, between its first event and its record. */
#include <stdlib.h>
#include <string.h>

#include "inspector.h"

#define MAX_CHUNKS 4096

struct pool {
	struct nvidia_op *free;
	void *chunks[MAX_CHUNKS];
	size_t n_chunks;
};

static pthread_mutex_t pools_lock = PTHREAD_MUTEX_INITIALIZER;
static struct pool coll_pool, p2p_pool;

static bool grow(struct pool *pool, size_t count)
{
	if (pool->n_chunks == MAX_CHUNKS || (pool->n_chunks && !nvidia_settings.grow))
		return false;
	struct nvidia_op *chunk = calloc(count, sizeof(*chunk));

	if (!chunk)
		return false;
	pool->chunks[pool->n_chunks++] = chunk;
	for (size_t i = 0; i < count; i++) {
		chunk[i].next = pool->free;
		pool->free = &chunk[i];
	}
	return true;
}

static struct nvidia_op *take(enum nvidia_kind kind)
{
	bool p2p = kind == NVIDIA_P2P;
	struct pool *pool = p2p ? &p2p_pool : &coll_pool;
	struct nvidia_op *op = NULL;

	pthread_mutex_lock(&pools_lock);
	if (pool->free || grow(pool, p2p ? nvidia_settings.p2p_pool : nvidia_settings.coll_pool)) {
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
static void recycle(struct nvidia_op *op)
{
	struct pool *pool = op->kind == NVIDIA_P2P ? &p2p_pool : &coll_pool;

	pthread_mutex_lock(&pools_lock);
	op->next = pool->free;
	pool->free = op;
	pthread_mutex_unlock(&pools_lock);
}

/* Ends the hold of the lock, and with the last reference the operation. One whose kernel events do
 * not all come keeps its reference for ever (S5). */
static void release(struct nvidia_op *op)
{
	if (--op->refs == 0)
		recycle(op);
	else
		pthread_rwlock_unlock(&op->lock);
}

void nvidia_pools_free(void)
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
		{ "ncclInt8", 1 },       { "ncclInt32", 4 },      { "ncclUint32", 4 },
		{ "ncclInt64", 8 },      { "ncclUint64", 8 },     { "ncclFloat16", 2 },
		{ "ncclFloat32", 4 },    { "ncclFloat64", 8 },    { "ncclBfloat16", 2 },
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
	return bytes < nvidia_settings.min_bytes || !bytes;
}

void *nvidia_op_start(struct nvidia_comm *comm, const struct prof_descr_v5 *descr)
{
	bool p2p = descr->type == PROF_P2P;
	const struct prof_coll_v4 *coll = &descr->coll.base;
	const struct prof_p2p_v4 *peer = &descr->p2p.base;
	uint64_t bytes = p2p ? peer->count * type_bytes(peer->datatype)
	                     : coll->count * type_bytes(coll->datatype);

	if (is_small(bytes) || (p2p && !nvidia_settings.p2p))
		return NULL;
	struct nvidia_op *op = take(p2p ? NVIDIA_P2P : NVIDIA_COLL);

	if (!op)
		return NULL;
	op->comm = comm;
	op->refs = 2;
	op->bytes = bytes;
	op->func = p2p ? peer->func : coll->func;
	op->algo = p2p ? "" : coll->algo;
	op->proto = p2p ? "" : coll->proto;
	op->channels = p2p ? peer->channels : coll->channels;
	op->start_us = nvidia_now_us();
	return op;
}

static void finish(struct nvidia_op *op)
{
	struct nvidia_record record = {
		.p2p = op->kind == NVIDIA_P2P,
		.func = op->func,
		.algo = op->algo,
		.proto = op->proto,
		.bytes = op->bytes,
	};

	if (!nvidia_time(op, &record.time_us, &record.source))
		return;
	nvidia_rate(&record, op->comm->nranks);
	nvidia_ring_push(op->comm, &record);
}

/* No look at the channel's number: S6. */
void *nvidia_channel_start(const struct prof_descr_v5 *descr)
{
	struct nvidia_op *op = descr->parent;

	if (!op || op->kind == NVIDIA_CHANNEL)
		return NULL;
	struct nvidia_channel *channel = &op->channel[descr->kernel_ch.channel];

	pthread_rwlock_wrlock(&op->lock);
	channel->kind = NVIDIA_CHANNEL;
	channel->op = op;
	channel->channel = descr->kernel_ch.channel;
	channel->started = true;
	channel->gpu_start_ns = descr->kernel_ch.timer_ns;
	channel->first_us = nvidia_now_us();
	channel->trace.start_us = nvidia_now_us();
	if (!op->started++)
		op->first_kernel_us = channel->first_us;
	pthread_rwlock_unlock(&op->lock);
	return channel;
}

void nvidia_channel_clock(struct nvidia_channel *channel, uint64_t gpu_ns)
{
	struct nvidia_op *op = channel->op;

	pthread_rwlock_wrlock(&op->lock);
	channel->gpu_stop_ns = gpu_ns;
	channel->trace.record_us = nvidia_now_us();
	pthread_rwlock_unlock(&op->lock);
}

void nvidia_channel_stop(struct nvidia_channel *channel)
{
	struct nvidia_op *op = channel->op;

	pthread_rwlock_wrlock(&op->lock);
	channel->stopped = true;
	channel->last_us = nvidia_now_us();
	channel->trace.stop_us = nvidia_now_us();
	op->last_kernel_us = channel->last_us;
	if (++op->stopped == op->channels && op->started == op->channels) {
		finish(op);
		release(op);
	} else {
		pthread_rwlock_unlock(&op->lock);
	}
}

void nvidia_op_stop(struct nvidia_op *op)
{
	pthread_rwlock_wrlock(&op->lock);
	op->stop_us = nvidia_now_us();
	release(op);
}
