/* SPDX-License-Identifier: Apache-2.0 */
#include "ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm.h"
#include "fail.h"
#include "gpuclock.h"
#include "link.h"

/* The n-th of `parts` nearly equal parts of `total` begins here; the next one's begin is its end.
 */
static size_t part(size_t total, int parts, int n)
{
	return total * (size_t)n / (size_t)parts;
}

#define PERIOD 64u

/* The data repeat after PERIOD elements, so that making and checking them costs a copy and a
 * comparison of memory: the processors are for the links. */
struct pattern {
	float from[PERIOD]; /* element `begin`, and so on */
};

/* `ranks` of them summed up, `offsets` being the sum of their rank_offset(). Small whole numbers:
 * exact in single precision, in whatever order a ring adds them. */
static struct pattern pattern_at(uint64_t salt, size_t begin, int ranks, int offsets)
{
	struct pattern pattern;

	for (size_t i = 0; i < PERIOD; i++)
		pattern.from[i] = (float)((int)((begin + i + salt) % PERIOD) * ranks + offsets);
	return pattern;
}

static int rank_offset(int rank)
{
	return rank * 5 + 3;
}

static struct pattern summed(uint64_t salt, size_t begin, int n_ranks)
{
	int offsets = 0;

	for (int rank = 0; rank < n_ranks; rank++)
		offsets += rank_offset(rank);
	return pattern_at(salt, begin, n_ranks, offsets);
}

/* Elements of the whole buffer: the shares of all ranks for AllGather and ReduceScatter. */
static size_t total(const struct op *op)
{
	bool shares = op->func == FUNC_ALLGATHER || op->func == FUNC_REDUCESCATTER;

	return shares ? op->count * (size_t)op->comm->n_ranks : op->count;
}

static void reserve(struct ring_memory *memory, size_t floats)
{
	if (floats <= memory->floats)
		return;
	free(memory->work);
	free(memory->landing);
	memory->work = malloc(floats * sizeof(float));
	memory->landing = malloc(floats * sizeof(float));
	if (!memory->work || !memory->landing)
		die("out of memory");
	memory->floats = floats;
}

void ring_fill(struct ring_memory *memory, const struct kernel *kernel)
{
	const struct op *op = kernel->ops[0];
	const struct comm *comm = kernel->comm;
	size_t begin = 0, end = total(op);
	struct pattern mine;

	reserve(memory, end);
	if (op->func == FUNC_ALLGATHER) { /* the rest comes from the others */
		memset(memory->work, 0, end * sizeof(float));
		begin = op->count * (size_t)comm->rank;
		end = begin + op->count;
	}
	mine = pattern_at(kernel->salt, begin, 1, rank_offset(comm->rank));
	for (size_t i = begin; i < end; i += PERIOD)
		memcpy(memory->work + i, mine.from,
		       (end - i < PERIOD ? end - i : PERIOD) * sizeof(float));
	if (kernel->corrupt)
		memory->work[begin] += 1;
	if (func_is_p2p(op->func))
		memset(memory->landing, 0, end * sizeof(float));
}

static void check(const struct kernel *kernel, int rc)
{
	const struct comm *comm = kernel->comm;
	const struct op *op = kernel->ops[0];

	while (rc && kernel->deaf)
		pause();
	if (rc == -ECONNRESET)
		die("%s: %s %llu: rank %d or %d of it has gone", comm->name, func_name(op->func),
		    (unsigned long long)op->seq, comm->prev, comm->next);
	if (rc)
		die("%s: %s %llu: %s", comm->name, func_name(op->func), (unsigned long long)op->seq,
		    strerror(-rc));
}

/* One step around the ring, channel after channel. `stamp`: the channel ends with this step. */
static void step(struct ring_memory *memory, const struct kernel *kernel, int out, int in, bool add,
                 bool stamp)
{
	struct comm *comm = kernel->comm;
	struct op *op = kernel->ops[0];
	int n = comm->n_ranks;
	size_t all = total(op), out0 = part(all, n, out), in0 = part(all, n, in);
	size_t out_size = part(all, n, out + 1) - out0, in_size = part(all, n, in + 1) - in0;

	for (int c = 0; c < op->n_channels; c++) {
		size_t from = out0 + part(out_size, op->n_channels, c);
		size_t from_end = out0 + part(out_size, op->n_channels, c + 1);
		size_t to = in0 + part(in_size, op->n_channels, c);
		size_t to_end = in0 + part(in_size, op->n_channels, c + 1);
		float *landing = add ? memory->landing : memory->work + to;

		check(kernel, link_exchange(&comm->link, memory->work + from,
		                            (from_end - from) * sizeof(float), landing,
		                            (to_end - to) * sizeof(float)));
		for (size_t i = to; add && i < to_end; i++)
			memory->work[i] += landing[i - to];
		if (stamp)
			op->channels[c].stop_ns = gpu_ns();
	}
}

/* n - 1 steps; `first` is the chunk that this rank sends in the first one. */
static void around(struct ring_memory *memory, const struct kernel *kernel, int first, bool add,
                   bool last)
{
	int n = kernel->comm->n_ranks;

	for (int s = 0; s < n - 1; s++)
		step(memory, kernel, (first - s + 2 * n) % n, (first - s - 1 + 2 * n) % n, add,
		     last && s == n - 2);
}

/* Send and Recv are one kernel and end together. */
static void send_recv(struct ring_memory *memory, const struct kernel *kernel)
{
	struct comm *comm = kernel->comm;
	size_t bytes = kernel->ops[0]->count * sizeof(float);
	uint64_t stop;

	check(kernel, link_exchange(&comm->link, memory->work, bytes, memory->landing, bytes));
	stop = gpu_ns();
	for (int i = 0; i < kernel->n_ops; i++)
		for (int c = 0; c < kernel->ops[i]->n_channels; c++)
			kernel->ops[i]->channels[c].stop_ns = stop;
}

void ring_run(struct ring_memory *memory, const struct kernel *kernel)
{
	struct comm *comm = kernel->comm;
	int rank = comm->rank;

	check(kernel, link_meet(&comm->link));
	for (int i = 0; i < kernel->n_ops; i++)
		for (int c = 0; c < kernel->ops[i]->n_channels; c++)
			kernel->ops[i]->channels[c].met_ns = gpu_ns();
	switch (kernel->ops[0]->func) {
	case FUNC_ALLREDUCE: /* after the first half this rank has the sum of the chunk `rank` */
		around(memory, kernel, rank - 1, true, false);
		around(memory, kernel, rank, false, true);
		break;
	case FUNC_REDUCESCATTER:
		around(memory, kernel, rank - 1, true, true);
		break;
	case FUNC_ALLGATHER:
		around(memory, kernel, rank, false, true);
		break;
	default:
		send_recv(memory, kernel);
	}
}

/* Elements begin to end - 1 are the pattern, which is that of element `begin`. */
static void expect(const struct kernel *kernel, const float *result, size_t begin, size_t end,
                   const struct pattern *pattern)
{
	for (size_t i = begin; i < end; i += PERIOD) {
		size_t n = end - i < PERIOD ? end - i : PERIOD;

		if (memcmp(result + i, pattern->from, n * sizeof(float)) != 0)
			die("%s: %s %llu: wrong result in elements %zu to %zu", kernel->comm->name,
			    func_name(kernel->ops[0]->func),
			    (unsigned long long)kernel->ops[0]->seq, i, i + n - 1);
	}
}

void ring_verify(const struct ring_memory *memory, const struct kernel *kernel)
{
	const struct op *op = kernel->ops[0];
	const struct comm *comm = kernel->comm;
	struct pattern want;
	size_t mine = op->count * (size_t)comm->rank;

	switch (op->func) {
	case FUNC_ALLREDUCE:
		want = summed(kernel->salt, 0, comm->n_ranks);
		expect(kernel, memory->work, 0, op->count, &want);
		break;
	case FUNC_REDUCESCATTER: /* only the own share is a result */
		want = summed(kernel->salt, mine, comm->n_ranks);
		expect(kernel, memory->work, mine, mine + op->count, &want);
		break;
	case FUNC_ALLGATHER:
		for (int rank = 0; rank < comm->n_ranks; rank++) {
			size_t begin = op->count * (size_t)rank;

			want = pattern_at(kernel->salt, begin, 1, rank_offset(rank));
			expect(kernel, memory->work, begin, begin + op->count, &want);
		}
		break;
	default:
		want = pattern_at(kernel->salt, 0, 1, rank_offset(comm->prev));
		expect(kernel, memory->landing, 0, op->count, &want);
	}
}
