/* SPDX-License-Identifier: Apache-2.0 */
/* inspector.c - the table that NCCL looks for, the communicators, and the thread that dumps. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inspector.h"

#define SUBSYSTEM_INIT 1

static pthread_rwlock_t list_lock = PTHREAD_RWLOCK_INITIALIZER;
static pthread_mutex_t init_lock = PTHREAD_MUTEX_INITIALIZER;
static struct nvidia_comm *comms, *deleted;
static unsigned live;
static bool ready, dumps;
static pthread_t thread;
static _Atomic bool run;
static prof_logger logger;

#define LOG(...) logger(PROF_LOG_INFO, SUBSYSTEM_INIT, __FILE__, __LINE__, "NVIDIA: " __VA_ARGS__)

/* Writes while the list is locked for init and finalize: S3. And no way to wake it: S1. */
static void *dump_thread(void *nothing)
{
	(void)nothing;
	do {
		if (nvidia_settings.interval_us)
			usleep((useconds_t)
			           nvidia_settings.interval_us); /* 0: a core for itself, S11 */
		if (!run)
			break;
		pthread_rwlock_rdlock(&list_lock);
		if (nvidia_settings.prom)
			nvidia_prom_dump(comms);
		pthread_rwlock_unlock(&list_lock);
	} while (run);
	return NULL;
}

/* Looks first, and gives up when another rank makes it in between. Parents are not made: S7. */
static bool make_dir(void)
{
	struct stat found;

	if (!stat(nvidia_settings.dir, &found))
		return S_ISDIR(found.st_mode);
	if (!mkdir(nvidia_settings.dir, 0777))
		return true;
	LOG("cannot make %s: %s: no output", nvidia_settings.dir, strerror(errno));
	return false;
}

static void set_up(void)
{
	int device;
	char uuid[48];

	nvidia_settings_load();
	ready = nvidia_settings.enable && nvidia_gpu(&device, uuid);
	if (!ready)
		return;
	dumps = nvidia_settings.thread && nvidia_settings.interval_us >= 0 && make_dir();
	if (!dumps)
		return;
	run = true;
	dumps = !pthread_create(&thread, NULL, dump_thread, NULL);
}

/* NULL for one that is there already. */
static struct nvidia_comm *add(uint64_t id, const char *name, int nnodes, int nranks, int rank)
{
	struct nvidia_comm *comm = calloc(1, sizeof(*comm));

	if (!comm)
		return NULL;
	comm->id = id;
	snprintf(comm->name, sizeof(comm->name), "%s", name ? name : "unknown");
	comm->rank = rank;
	comm->nranks = nranks;
	comm->nnodes = nnodes;
	comm->coll.size = nvidia_settings.coll_ring;
	comm->p2p.size = nvidia_settings.p2p_ring;
	nvidia_gpu(&comm->device, comm->uuid);
	pthread_rwlock_init(&comm->lock, NULL);
	pthread_rwlock_wrlock(&list_lock);
	for (const struct nvidia_comm *other = comms; other; other = other->next)
		if (other->id == id && other->rank == rank) {
			pthread_rwlock_unlock(&list_lock);
			free(comm);
			return NULL;
		}
	comm->next = comms;
	comms = comm;
	pthread_rwlock_unlock(&list_lock);
	return comm;
}

static int init(void **context, uint64_t id, int *mask, const char *name, int nnodes, int nranks,
                int rank, prof_logger nccl_logger)
{
	pthread_mutex_lock(&init_lock);
	logger = nccl_logger;
	if (!live)
		set_up();
	*context = NULL;
	*mask = 0;
	if (ready) {
		*mask = PROF_COLL | PROF_KERNEL_CH | (nvidia_settings.p2p ? PROF_P2P : 0);
		live++; /* also of one that nobody will take away: S8 */
		*context = add(id, name, nnodes, nranks, rank);
		if (!*context)
			LOG("communicator 0x%llx is there already", (unsigned long long)id);
	}
	pthread_mutex_unlock(&init_lock);
	return 0;
}

static int start(void *context, void **handle, struct prof_descr_v5 *descr)
{
	if (!context) {
		LOG("event of a communicator that is not known"); /* each time: S12 */
		return 0; /* and the handle is as it was: S9 */
	}
	*handle = NULL;
	if (descr->type == PROF_COLL || descr->type == PROF_P2P)
		*handle = nvidia_op_start(context, descr);
	else if (descr->type == PROF_KERNEL_CH)
		*handle = nvidia_channel_start(descr);
	return 0;
}

static int stop(void *handle)
{
	const enum nvidia_kind *kind = handle;

	if (!handle)
		return 0;
	if (*kind == NVIDIA_CHANNEL)
		nvidia_channel_stop(handle);
	else
		nvidia_op_stop(handle);
	return 0;
}

static int record(void *handle, int state, union prof_args *args)
{
	const enum nvidia_kind *kind = handle;

	if (handle && *kind == NVIDIA_CHANNEL && state == PROF_STATE_KERNEL_CH_STOP)
		nvidia_channel_clock(handle, args->timer_ns);
	return 0;
}

static void free_deleted(void)
{
	while (deleted) {
		struct nvidia_comm *next = deleted->next;

		free(deleted->coll.records);
		free(deleted->p2p.records);
		pthread_rwlock_destroy(&deleted->lock);
		free(deleted);
		deleted = next;
	}
}

/* The whole interval long (S1), and nothing is written once more (D4). */
static void shut_down(void)
{
	if (dumps) {
		run = false;
		pthread_join(thread, NULL);
		nvidia_prom_end();
	}
	free_deleted();
	nvidia_pools_free();
	ready = dumps = false;
}

static int finalize(void *context)
{
	struct nvidia_comm *comm = context;

	if (!comm)
		return 0;
	pthread_mutex_lock(&init_lock);
	pthread_rwlock_wrlock(&list_lock);
	for (struct nvidia_comm **link = &comms; *link; link = &(*link)->next)
		if (*link == comm) {
			*link = comm->next;
			break;
		}
	comm->next = deleted; /* what it has in its rings is never dumped: D4 */
	deleted = comm;
	pthread_rwlock_unlock(&list_lock);
	if (--live == 0)
		shut_down();
	pthread_mutex_unlock(&init_lock);
	return 0;
}

/* Nothing for NCCL <= 2.27: D12. Nothing of v6, copy engines: D11. */
const struct prof_table_v5 ncclProfiler_v5 = {
	.name = "inspector",
	.init = init,
	.start = start,
	.stop = stop,
	.record = record,
	.finalize = finalize,
};
