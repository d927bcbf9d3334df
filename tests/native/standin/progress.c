/* SPDX-License-Identifier: Apache-2.0 */
#include "progress.h"

#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "profiler.h"

/* The i-th channel to be told of: NCCL promises no order, so this one changes with `turn`. */
static struct channel *odd_order(struct op *op, int i, uint64_t turn)
{
	uint64_t n = (uint64_t)op->n_channels;
	uint64_t at = ((uint64_t)i + 1 + turn) % n;

	return &op->channels[turn & 2 ? n - 1 - at : at];
}

static void tell_starts(struct op *op)
{
	for (int i = 0; i < op->n_channels; i++) {
		struct channel *channel = odd_order(op, i, op->seq);
		struct event event = { .type = PROF_KERNEL_CH,
		                       .parent = op->handle,
		                       .channel = channel,
		                       .timer_ns = channel->start_ns };

		channel->handle = NULL;
		if (op->mask & PROF_KERNEL_CH)
			channel->handle = prof_start(op->comm, &event);
	}
}

static void tell_phases(struct op *op, const struct channel *channel)
{
	const uint64_t times[] = { channel->start_ns, channel->met_ns, channel->stop_ns,
	                           channel->stop_ns };

	for (int phase = 0; phase < 3; phase++) {
		struct event event = { .type = PROF_KERNEL_PHASE,
		                       .parent = channel->handle,
		                       .channel = channel,
		                       .phase = phase,
		                       .timer_ns = times[phase] };
		void *handle = prof_start(op->comm, &event);

		prof_record(handle, PROF_STATE_KERNEL_PHASE_STOP, times[phase + 1]);
		prof_stop(handle);
	}
}

static void tell_stops(struct op *op)
{
	for (int i = 0; i < op->n_channels; i++) {
		struct channel *channel = odd_order(op, i, op->seq / 2);

		if (prof_version() >= 7 && op->mask & PROF_KERNEL_PHASE)
			tell_phases(op, channel);
		prof_record(channel->handle, PROF_STATE_KERNEL_CH_STOP, channel->stop_ns);
		prof_stop(channel->handle);
	}
}

/* The first operation of which there is something to tell, under the lock. */
static struct op *next_to_tell(struct comm *comm)
{
	for (struct op *op = comm->pending; op; op = op->next)
		if (op->gpu_finished || (op->gpu_started && !op->starts_told))
			return op;
	return NULL;
}

static void unlink_op(struct comm *comm, const struct op *op)
{
	struct op **at = &comm->pending;

	while (*at != op)
		at = &(*at)->next;
	*at = op->next;
}

/* Under the lock, which it gives up while it talks: an operation that another thread only adds
 * or marks is not taken away by anybody else. */
static void tell(struct comm *comm, struct op *op)
{
	bool starts = !op->starts_told, stops = op->gpu_finished;

	op->starts_told = true;
	if (stops)
		unlink_op(comm, op);
	pthread_mutex_unlock(&comm->lock);
	if (starts)
		tell_starts(op);
	if (stops) {
		tell_stops(op);
		oplog_write(comm->log, op);
		free(op);
	}
	pthread_mutex_lock(&comm->lock);
}

static void *run(void *arg)
{
	struct comm *comm = arg;

	pthread_setname_np(pthread_self(), prof_version() >= 7 ? "NCCL Profiler" : "NCCL Progress");
	pthread_mutex_lock(&comm->lock);
	while (!comm->stopping || comm->pending) {
		struct op *op = next_to_tell(comm);

		if (op)
			tell(comm, op);
		else
			pthread_cond_wait(&comm->wake, &comm->lock);
	}
	pthread_mutex_unlock(&comm->lock);
	return NULL;
}

void progress_start(struct comm *comm, const struct oplog *log)
{
	int error;

	comm->log = log;
	pthread_mutex_init(&comm->lock, NULL);
	pthread_cond_init(&comm->wake, NULL);
	error = pthread_create(&comm->thread, NULL, run, comm);
	if (error)
		die("no thread for %s: %s", comm->name, strerror(error));
}

void progress_stop(struct comm *comm)
{
	pthread_mutex_lock(&comm->lock);
	comm->stopping = true;
	pthread_cond_signal(&comm->wake);
	pthread_mutex_unlock(&comm->lock);
	pthread_join(comm->thread, NULL);
	pthread_cond_destroy(&comm->wake);
	pthread_mutex_destroy(&comm->lock);
}

void progress_add(struct op *op)
{
	struct comm *comm = op->comm;
	struct op **at = &comm->pending;

	pthread_mutex_lock(&comm->lock);
	while (*at)
		at = &(*at)->next;
	*at = op;
	pthread_cond_signal(&comm->wake);
	pthread_mutex_unlock(&comm->lock);
}

static void mark(struct op *op, bool *flag)
{
	struct comm *comm = op->comm;

	pthread_mutex_lock(&comm->lock);
	*flag = true;
	pthread_cond_signal(&comm->wake);
	pthread_mutex_unlock(&comm->lock);
}

void progress_gpu_started(struct op *op)
{
	mark(op, &op->gpu_started);
}

void progress_gpu_finished(struct op *op)
{
	mark(op, &op->gpu_finished);
}
