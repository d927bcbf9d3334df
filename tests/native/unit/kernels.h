/* SPDX-License-Identifier: Apache-2.0 */
/* kernels.h - of test_conserves.c: what NCCL hands from the application's thread to the one that
 * reports kernels, and what that one tells, in any order, of several operations at a time.
 */
#ifndef NCCL_INSPECTOR_KERNELS_H
#define NCCL_INSPECTOR_KERNELS_H

#include <sched.h>
#include <string.h>

#include "../fuzz/calls.h"
#include "hot/kernels.h"
#include "inspector.h"

#define COMMS 26u   /* of a pair, one after the other: in all more than there are records */
#define QUEUE 4096u /* more than a communicator can have slots */
#define OPEN 8u     /* operations whose kernels run at a time */
#define GPU_AHEAD_NS 1700000000000000000ull

/* What becomes of an operation: all is told; fewer channels than were announced; the end of one is
 * lost; nothing. */
enum fate { WHOLE, FEWER, HALF, NEVER };

struct driver_op {
	void *handle; /* NULL with `last`: the communicator has no more */
	uint64_t bytes, base_ns, took_ns;
	uint64_t to_start, to_stop; /* channels */
	uint8_t channels;
	enum fate fate;
	bool last;
};

/* One side's log. */
struct driver_log {
	uint64_t ops, bytes, untimed_ops, untimed_bytes, no_handle; /* the application's */
	uint64_t whole_ops, whole_bytes, busy_ns, halves, nevers;   /* the kernels' */
};

struct pair {
	uint64_t random[2]; /* of each side */
	void *comm;
	struct driver_log now, all, kernels_now, kernels_all;
	struct driver_op queue[QUEUE];
	_Atomic unsigned head, tail, ended; /* ended: communicators whose kernels are over */
	_Atomic bool
	    paused; /* nothing is taken from the queue until it is full, or the communicator ends */
	void *late[16]; /* channels whose end comes when their communicator is gone */
	unsigned lates;
	bool wrong;
};

static unsigned api;    /* 3, 4 or 7 */
static bool tells_late; /* ends of channels when their communicator is gone */

static uint64_t draw(uint64_t *state, uint64_t below)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (*state * 0x2545f4914f6cdd1dull >> 32) % below;
}

static void stop_channel(void *channel, uint64_t gpu_ns)
{
	union abi_state_args args = { .gpu_ns = gpu_ns };

	if (api > 3)
		calls_state(api, channel, ABI_STATE_KERNEL_CH_STOP, &args);
	calls_stop(api, channel);
}

static void note(struct pair *pair, const struct driver_op *op)
{
	struct driver_log *log = &pair->kernels_now;

	log->nevers += op->fate == NEVER;
	log->halves += op->fate == HALF;
	if (op->fate == NEVER || op->fate == HALF)
		return;
	log->whole_ops++;
	log->whole_bytes += op->bytes;
	log->busy_ns += op->took_ns;
}

static void take(struct pair *pair, struct driver_op *op)
{
	unsigned tail = atomic_load(&pair->tail);
	uint64_t first = draw(&pair->random[1], 58);

	*op = pair->queue[tail % QUEUE];
	atomic_store(&pair->tail, tail + 1);
	op->base_ns = track_now_ns(&inspector_track) + GPU_AHEAD_NS;
	op->to_start = ((1ull << (op->channels - (op->fate == FEWER))) - 1) << first;
	op->to_stop = op->to_start;
	if (op->fate == NEVER || op->last)
		op->to_start = op->to_stop = 0;
}

static unsigned any_bit(uint64_t *random, uint64_t bits)
{
	for (uint64_t skip = draw(random, track_count(&inspector_track, bits)); skip; skip--)
		bits &= bits - 1;
	return (unsigned)__builtin_ctzll(bits);
}

/* One call of those that an operation still has, in any order. All channels begin at one time of
 * the GPU and end at one. */
static void advance(struct pair *pair, struct driver_op *op, void *channels[64])
{
	uint64_t *random = &pair->random[1], can_stop = op->to_stop & ~op->to_start;

	if (op->to_start && (!can_stop || draw(random, 2))) {
		unsigned channel = any_bit(random, op->to_start);
		struct calls_words words = { .channel = (uint8_t)channel,
		                             .gpu_ns = op->base_ns,
		                             .phase = ABI_PHASE_SYNC };

		channels[channel] = calls_start(api, pair->comm, ABI_KERNEL_CH, op->handle, &words);
		op->to_start &= ~(1ull << channel);
		if (api == 7) {
			union abi_state_args args = { .gpu_ns = op->base_ns + 500 };
			void *phase = calls_start(api, pair->comm, ABI_KERNEL_PHASE,
			                          channels[channel], &words);

			calls_state(api, phase, ABI_STATE_KERNEL_PHASE_STOP, &args);
			calls_stop(api, phase);
		}
	} else {
		unsigned channel = any_bit(random, can_stop);
		bool is_lost = op->fate == HALF && op->to_stop == 1ull << channel;

		if (!is_lost)
			stop_channel(channels[channel], op->base_ns + op->took_ns);
		else if (pair->lates < 16)
			pair->late[pair->lates++] = channels[channel];
		op->to_stop &= ~(1ull << channel);
	}
}

/* Of those whose communicator is gone by now: proxies are shared, and late. */
static void tell_late(struct pair *pair)
{
	for (; tells_late && pair->lates; pair->lates--)
		stop_channel(pair->late[pair->lates - 1],
		             track_now_ns(&inspector_track) + GPU_AHEAD_NS);
	pair->lates = 0;
}

static void *kernels(void *argument)
{
	static _Thread_local void *channels[OPEN][64];
	struct pair *pair = argument;
	struct driver_op open[OPEN];
	unsigned count = 0, ended = 0;
	bool last = false;

	while (ended < COMMS) {
		bool waits = atomic_load(&pair->head) == atomic_load(&pair->tail) ||
		             atomic_load(&pair->paused);

		if (!last && count < OPEN && !waits) {
			take(pair, &open[count]);
			last = open[count].last;
			count += !last;
		} else if (count) {
			unsigned i = (unsigned)draw(&pair->random[1], count);

			if (open[i].to_stop) {
				advance(pair, &open[i], channels[i]);
				continue;
			}
			note(pair, &open[i]);
			count--;
			open[i] = open[count];
			memcpy(channels[i], channels[count], sizeof(channels[i]));
		} else if (last) {
			last = false;
			ended++;
			atomic_store(&pair->ended, ended);
			while (ended < COMMS &&
			       atomic_load(&pair->head) == atomic_load(&pair->tail))
				sched_yield();
			tell_late(pair);
		} else {
			sched_yield();
		}
	}
	return NULL;
}

#endif
