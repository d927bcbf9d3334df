/* SPDX-License-Identifier: Apache-2.0 */
/* recorder.c - a profiler plugin that writes down each call, for the tests of the stand-in.
 *
 * RECORDER_FILE: each process writes <RECORDER_FILE>.<pid>, one JSON object a line, in the order
 * of the calls. RECORDER_MASK: the activation mask (default Coll, P2p, KernelCh).
 * RECORDER_NULL: event types that get a NULL handle. RECORDER_MASK_AT=<n>:<mask>: when the n-th
 * Coll or P2p has stopped, the mask becomes this.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "profiler_abi.h"

#define FIRST_HANDLE 1000u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;
static int *mask_of_nccl;
static unsigned long null_types, tasks_until_mask, new_mask;
static _Atomic uintptr_t last_handle = FIRST_HANDLE;
static unsigned long type_of[1u << 20]; /* of a handle, under the lock */

static unsigned long env_number(const char *name, unsigned long missing)
{
	const char *text = getenv(name);

	return text ? strtoul(text, NULL, 0) : missing;
}

static void open_file(void)
{
	const char *base = getenv("RECORDER_FILE"), *change = getenv("RECORDER_MASK_AT");
	char path[4096], *end;

	if (out || !base)
		return;
	snprintf(path, sizeof(path), "%s.%d", base, getpid());
	out = fopen(path, "ae");
	null_types = env_number("RECORDER_NULL", 0);
	if (change) {
		tasks_until_mask = strtoul(change, &end, 0);
		new_mask = *end == ':' ? strtoul(end + 1, NULL, 0) : 0;
	}
}

/* Writes one line: who and when, then the caller's members. Under the lock, so that the order
 * of the lines is one in which the calls can have happened. */
static void put(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
static void put(const char *fmt, ...)
{
	struct timespec now;
	va_list args;

	if (!out)
		return;
	clock_gettime(CLOCK_MONOTONIC, &now);
	fprintf(out, "{\"tid\":%d,\"host_ns\":%lld,", gettid(),
	        (long long)now.tv_sec * 1000000000 + now.tv_nsec);
	va_start(args, fmt);
	vfprintf(out, fmt, args);
	va_end(args);
	fputs("}\n", out);
	fflush(out);
}

static int init(int version, void **context, int *mask, const char *name, uint64_t id, int n_nodes,
                int n_ranks, int rank, prof_logger logger)
{
	int (*get_version)(int *) = NULL;
	int nccl = 0;

	pthread_mutex_lock(&lock);
	open_file();
	mask_of_nccl = mask;
	__atomic_store_n(mask,
	                 (int)env_number("RECORDER_MASK", PROF_COLL | PROF_P2P | PROF_KERNEL_CH),
	                 __ATOMIC_RELAXED);
	*context = (void *)++last_handle;
	*(void **)&get_version = dlsym(RTLD_DEFAULT, "ncclGetVersion");
	if (get_version)
		get_version(&nccl);
	put("\"call\":\"init\",\"api\":%d,\"nccl\":%d,\"context\":%lu,\"name\":\"%s\",\"id\":%llu,"
	    "\"n_nodes\":%d,\"n_ranks\":%d,\"rank\":%d",
	    version, nccl, (unsigned long)*context, name, (unsigned long long)id, n_nodes, n_ranks,
	    rank);
	pthread_mutex_unlock(&lock);
	logger(PROF_LOG_INFO, 1, __FILE__, __LINE__, "recorder: %s", name);
	return 0;
}

/* Gives the handle and opens the line's members; to be called, and followed, under the lock. */
static void *begin(unsigned long type, int rank, const void *parent, const void *context,
                   char *text, size_t size)
{
	void *handle = NULL;

	if (!(null_types & type)) {
		handle = (void *)++last_handle;
		type_of[(uintptr_t)handle % (sizeof(type_of) / sizeof(*type_of))] = type;
	}
	snprintf(text, size,
	         "\"call\":\"start\",\"type\":%lu,\"handle\":%lu,\"parent\":%lu,\"rank\":%d,"
	         "\"context\":%lu",
	         type, (unsigned long)handle, (unsigned long)parent, rank, (unsigned long)context);
	return handle;
}

static void put_coll(const char *head, const struct prof_coll_v4 *coll, const void *group)
{
	put("%s,\"seq\":%llu,\"func\":\"%s\",\"count\":%zu,\"datatype\":\"%s\",\"channels\":%d,"
	    "\"algo\":\"%s\",\"proto\":\"%s\",\"group\":%lu",
	    head, (unsigned long long)coll->seq, coll->func, coll->count, coll->datatype,
	    coll->channels, coll->algo, coll->proto, (unsigned long)group);
}

static void put_p2p(const char *head, const struct prof_p2p_v4 *p2p, const void *group)
{
	put("%s,\"func\":\"%s\",\"count\":%zu,\"datatype\":\"%s\",\"peer\":%d,\"channels\":%d,"
	    "\"group\":%lu",
	    head, p2p->func, p2p->count, p2p->datatype, p2p->peer, p2p->channels,
	    (unsigned long)group);
}

static void put_api(const char *head, const char *func, size_t count, const char *datatype)
{
	put("%s,\"func\":\"%s\",\"count\":%zu,\"datatype\":\"%s\"", head, func, count, datatype);
}

static void put_channel(const char *head, unsigned int channel, uint64_t timer_ns)
{
	put("%s,\"channel\":%u,\"timer_ns\":%llu", head, channel, (unsigned long long)timer_ns);
}

static int start_v4(void *context, void **handle, struct prof_descr_v4 *descr)
{
	char head[256];

	pthread_mutex_lock(&lock);
	*handle = begin(descr->type, descr->rank, descr->parent, context, head, sizeof(head));
	if (descr->type == PROF_COLL)
		put_coll(head, &descr->coll, NULL);
	else if (descr->type == PROF_P2P)
		put_p2p(head, &descr->p2p, NULL);
	else if (descr->type == PROF_KERNEL_CH)
		put_channel(head, descr->kernel_ch.channel, descr->kernel_ch.timer_ns);
	else
		put("%s", head);
	pthread_mutex_unlock(&lock);
	return 0;
}

static int start_v5(void *context, void **handle, struct prof_descr_v5 *descr)
{
	char head[256];

	pthread_mutex_lock(&lock);
	*handle = begin(descr->type, descr->rank, descr->parent, context, head, sizeof(head));
	if (descr->type == PROF_COLL)
		put_coll(head, &descr->coll.base, descr->coll.parent_group);
	else if (descr->type == PROF_P2P)
		put_p2p(head, &descr->p2p.base, descr->p2p.parent_group);
	else if (descr->type == PROF_COLL_API)
		put_api(head, descr->coll_api.func, descr->coll_api.count,
		        descr->coll_api.datatype);
	else if (descr->type == PROF_P2P_API)
		put_api(head, descr->p2p_api.func, descr->p2p_api.count, descr->p2p_api.datatype);
	else if (descr->type == PROF_GROUP_API)
		put("%s,\"depth\":%d", head, descr->group_api.depth);
	else if (descr->type == PROF_KERNEL_CH)
		put_channel(head, descr->kernel_ch.channel, descr->kernel_ch.timer_ns);
	else
		put("%s", head);
	pthread_mutex_unlock(&lock);
	return 0;
}

static int start_v7(void *context, void **handle, struct prof_descr_v7 *descr)
{
	char head[256];

	/* What v7 adds to the members of v5 is behind them. */
	if (descr->type != PROF_KERNEL_PHASE)
		return start_v5(context, handle, (struct prof_descr_v5 *)(void *)descr);
	pthread_mutex_lock(&lock);
	*handle = begin(descr->type, descr->rank, descr->parent, context, head, sizeof(head));
	put("%s,\"channel\":%u,\"phase\":%u,\"name\":\"%s\",\"timer_ns\":%llu", head,
	    descr->kernel_phase.channel, descr->kernel_phase.phase, descr->kernel_phase.name,
	    (unsigned long long)descr->kernel_phase.timer_ns);
	pthread_mutex_unlock(&lock);
	return 0;
}

static int stop(void *handle)
{
	unsigned long type;

	pthread_mutex_lock(&lock);
	type = type_of[(uintptr_t)handle % (sizeof(type_of) / sizeof(*type_of))];
	put("\"call\":\"stop\",\"type\":%lu,\"handle\":%lu", type, (unsigned long)handle);
	if ((type == PROF_COLL || type == PROF_P2P) && tasks_until_mask && !--tasks_until_mask)
		__atomic_store_n(mask_of_nccl, (int)new_mask, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&lock);
	return 0;
}

static int record(void *handle, int state, union prof_args *args)
{
	bool timed = state == PROF_STATE_KERNEL_CH_STOP || state == PROF_STATE_KERNEL_PHASE_STOP;

	pthread_mutex_lock(&lock);
	put("\"call\":\"record\",\"handle\":%lu,\"state\":%d,\"timer_ns\":%llu",
	    (unsigned long)handle, state, timed ? (unsigned long long)args->timer_ns : 0);
	pthread_mutex_unlock(&lock);
	return 0;
}

static int finalize(void *context)
{
	pthread_mutex_lock(&lock);
	put("\"call\":\"finalize\",\"context\":%lu", (unsigned long)context);
	pthread_mutex_unlock(&lock);
	return 0;
}

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int n_nodes,
                   int n_ranks, int rank, prof_logger logger)
{
	return init(4, context, mask, name, hash, n_nodes, n_ranks, rank, logger);
}

#define INIT(version)                                                                              \
	static int init_v##version(void **context, uint64_t id, int *mask, const char *name,       \
	                           int n_nodes, int n_ranks, int rank, prof_logger logger)         \
	{                                                                                          \
		return init(version, context, mask, name, id, n_nodes, n_ranks, rank, logger);     \
	}
INIT(5)
INIT(6)
INIT(7)

extern const struct prof_table_v4 ncclProfiler_v4;
extern const struct prof_table_v5 ncclProfiler_v5, ncclProfiler_v6;
extern const struct prof_table_v7 ncclProfiler_v7;

const struct prof_table_v4 ncclProfiler_v4 = {
	"recorder", init_v4, start_v4, stop, record, finalize
};
const struct prof_table_v5 ncclProfiler_v5 = {
	"recorder", init_v5, start_v5, stop, record, finalize
};
const struct prof_table_v5 ncclProfiler_v6 = {
	"recorder", init_v6, start_v5, stop, record, finalize
};
const struct prof_table_v7 ncclProfiler_v7 = {
	"recorder", init_v7, start_v7, stop, record, finalize
};
