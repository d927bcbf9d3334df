/* SPDX-License-Identifier: Apache-2.0 */
/* nothing.c - a profiler that does nothing: the floor that the inspector's cost is measured above.
 *
 * nothing_answer() tells it which events to ask for and which to answer with a handle, so that NCCL
 * makes the same calls to both. */
#include "nothing.h"

#include "profiler_abi.h"
#include "profiler_abi_old.h"

#define HANDLE ((void *)(uintptr_t)0x1000)

static int wanted_mask;
static uint64_t answered;

void nothing_answer(int mask, uint64_t types)
{
	wanted_mask = mask;
	answered = types;
}

static int begin(void **context, int *mask)
{
	*context = HANDLE;
	__atomic_store_n(mask, wanted_mask, __ATOMIC_RELAXED);
	return 0;
}

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int n_nodes,
                   int n_ranks, int rank, prof_logger logger)
{
	(void)name, (void)hash, (void)n_nodes, (void)n_ranks, (void)rank, (void)logger;
	return begin(context, mask);
}

static int init_v5(void **context, uint64_t id, int *mask, const char *name, int n_nodes,
                   int n_ranks, int rank, prof_logger logger)
{
	(void)id, (void)name, (void)n_nodes, (void)n_ranks, (void)rank, (void)logger;
	return begin(context, mask);
}

#define START(version)                                                                             \
	static int start_v##version(void *context, void **handle, struct prof_descr_v##version *d) \
	{                                                                                          \
		(void)context;                                                                     \
		*handle = d->type & answered ? HANDLE : NULL;                                      \
		return 0;                                                                          \
	}
START(1)
START(2)
START(3)
START(4)
START(5)
START(7)

static int stop(void *handle)
{
	(void)handle;
	return 0;
}

static int record(void *handle, int state, union prof_args *args)
{
	(void)handle, (void)state, (void)args;
	return 0;
}

static int record_old(void *handle, int state, union prof_args_old *args)
{
	(void)handle, (void)state, (void)args;
	return 0;
}

extern const struct prof_table_v1 ncclProfiler_v1;
extern const struct prof_table_v2 ncclProfiler_v2;
extern const struct prof_table_v3 ncclProfiler_v3;
extern const struct prof_table_v4 ncclProfiler_v4;
extern const struct prof_table_v5 ncclProfiler_v5, ncclProfiler_v6;
extern const struct prof_table_v7 ncclProfiler_v7;

const struct prof_table_v1 ncclProfiler_v1 = { "nothing", begin, start_v1, stop, record_old, stop };
const struct prof_table_v2 ncclProfiler_v2 = { "nothing", begin, start_v2, stop, record_old, stop };
const struct prof_table_v3 ncclProfiler_v3 = { "nothing", begin, start_v3, stop, record_old, stop };
const struct prof_table_v4 ncclProfiler_v4 = { "nothing", init_v4, start_v4, stop, record, stop };
const struct prof_table_v5 ncclProfiler_v5 = { "nothing", init_v5, start_v5, stop, record, stop };
const struct prof_table_v5 ncclProfiler_v6 = { "nothing", init_v5, start_v5, stop, record, stop };
const struct prof_table_v7 ncclProfiler_v7 = { "nothing", init_v5, start_v7, stop, record, stop };
