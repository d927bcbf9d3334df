/* SPDX-License-Identifier: Apache-2.0 */
/* libnccl.c - a libnccl.so.2 without a GPU: as much of nccl.h as tests/gpu uses, for trying its
 * program. Nothing goes from rank to rank: each operation takes PLAYED_NCCL_MS on its own, and
 * the profiler that NCCL_PROFILER_PLUGIN names is told of it as NCCL would. PLAYED_NCCL_VERSION
 * (23203) is the version that it is. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "player.h"

enum { SUCCESS = 0, INVALID_ARGUMENT = 4 };
enum { TYPE_UINT8 = 1, TYPE_FLOAT32 = 7 };
enum { GROUP_MAX = 8, WORLD_ID = 0x77, CALL_ONLY_SINCE = 22900, NAMED_SINCE = 22700 };

struct unique_id {
	char internal[128];
};

struct config { /* the beginning of ncclConfig_t of 2.27 */
	size_t size;
	unsigned magic, version;
	int blocking, cga_cluster_size, min_ctas, max_ctas;
	const char *net_name;
	int split_share, traffic_class;
	const char *comm_name;
};

struct comm {
	struct player_comm played;
	char name[64];
};

int ncclGetVersion(int *version);
const char *ncclGetErrorString(int result);
int ncclGetUniqueId(struct unique_id *id);
int ncclCommInitRank(struct comm **comm, int ranks, struct unique_id id, int rank);
int ncclCommInitRankConfig(struct comm **comm, int ranks, struct unique_id id, int rank,
                           const struct config *config);
int ncclCommSplit(struct comm *parent, int color, int key, struct comm **comm,
                  const struct config *config);
int ncclCommDestroy(struct comm *comm);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclAllReduce(const float *send, float *recv, size_t count, int type, int op, struct comm *comm,
                  void *stream);
int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op,
                      struct comm *comm, void *stream);
int ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root,
               struct comm *comm, void *stream);
int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, struct comm *comm,
                  void *stream);
int ncclAllGather(const void *send, void *recv, size_t count, int type, struct comm *comm,
                  void *stream);
int ncclSend(const void *send, size_t count, int type, int peer, struct comm *comm, void *stream);
int ncclRecv(void *recv, size_t count, int type, int peer, struct comm *comm, void *stream);

static struct player player;
static bool has_profiler;
static struct player_op group[GROUP_MAX];
static struct comm *group_comm;
static unsigned grouped;
static bool in_group;

int ncclGetVersion(int *version)
{
	const char *given = getenv("PLAYED_NCCL_VERSION");

	*version = given ? atoi(given) : 23203;
	return SUCCESS;
}

const char *ncclGetErrorString(int result)
{
	return result ? "no success" : "no error";
}

int ncclGetUniqueId(struct unique_id *id)
{
	static char made;

	memset(id, 1, sizeof(*id));
	id->internal[1] = made++;
	return SUCCESS;
}

/* As in NCCL the first communicator loads the library; here nothing unloads it. */
static void load_profiler(void)
{
	const char *name = getenv("NCCL_PROFILER_PLUGIN");
	int version, api;

	if (has_profiler || !name || strcmp(name, "none") == 0)
		return;
	ncclGetVersion(&version);
	api = version >= 23100 ? 7 : version >= 22900 ? 6 : version >= 22800 ? 5 : 4;
	has_profiler = player_open(&player, name, api);
}

static struct comm *make_comm(int ranks, int rank, uint64_t id, const struct config *config)
{
	struct comm *comm = calloc(1, sizeof(*comm));

	if (!comm)
		return NULL;
	if (config && config->size >= sizeof(*config) && config->comm_name)
		snprintf(comm->name, sizeof(comm->name), "%s", config->comm_name);
	comm->played = (struct player_comm){
		.name = comm->name, .id = id, .n_nodes = ranks, .n_ranks = ranks, .rank = rank
	};
	load_profiler();
	if (has_profiler)
		player_init(&player, &comm->played);
	return comm;
}

static uint64_t number_of(const struct unique_id *id)
{
	return WORLD_ID + 256 * (uint64_t)id->internal[1];
}

int ncclCommInitRankConfig(struct comm **comm, int ranks, struct unique_id id, int rank,
                           const struct config *config)
{
	if (id.internal[0] != 1 || config->magic != 0xcafebeefu || config->version != NAMED_SINCE)
		return INVALID_ARGUMENT;
	*comm = make_comm(ranks, rank, number_of(&id), config);
	return *comm ? SUCCESS : INVALID_ARGUMENT;
}

int ncclCommInitRank(struct comm **comm, int ranks, struct unique_id id, int rank)
{
	*comm = id.internal[0] == 1 ? make_comm(ranks, rank, number_of(&id), NULL) : NULL;
	return *comm ? SUCCESS : INVALID_ARGUMENT;
}

/* By even and odd ranks, which is all that is asked of it. */
int ncclCommSplit(struct comm *parent, int color, int key, struct comm **comm,
                  const struct config *config)
{
	int ranks = (parent->played.n_ranks + 1 - color) / 2;

	*comm = make_comm(ranks, key / 2, parent->played.id + 1 + (uint64_t)color, config);
	return *comm ? SUCCESS : INVALID_ARGUMENT;
}

int ncclCommDestroy(struct comm *comm)
{
	if (has_profiler)
		player_finalize(&comm->played);
	free(comm);
	return SUCCESS;
}

static uint64_t gpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_REALTIME, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Plays what the group holds: the calls, the time it takes, the kernel's events. */
static void flush(void)
{
	const char *ms = getenv("PLAYED_NCCL_MS");
	uint64_t start_ns;

	if (has_profiler && grouped == 1)
		player_enqueue(&group_comm->played, &group[0]);
	else if (has_profiler)
		player_enqueue_group(&group_comm->played, group, grouped);
	start_ns = gpu_ns();
	usleep((useconds_t)(1000 * (ms ? atoi(ms) : 1)));
	for (unsigned i = 0; has_profiler && i < grouped; i++)
		player_kernel(&group_comm->played, &group[i], start_ns, gpu_ns());
	grouped = 0;
}

static int issue(struct comm *comm, struct player_op op)
{
	if (grouped == GROUP_MAX)
		return INVALID_ARGUMENT;
	group_comm = comm;
	group[grouped++] = op;
	if (!in_group)
		flush();
	return SUCCESS;
}

static int collective(struct comm *comm, enum player_func func, size_t count, int type)
{
	struct player_op op;
	int version;

	if (type != TYPE_UINT8 && type != TYPE_FLOAT32)
		return INVALID_ARGUMENT;
	op = player_coll(func, count * (type == TYPE_FLOAT32 ? 4 : 1));
	if (type == TYPE_UINT8) {
		op.datatype = op.api_datatype = "Unknown";
		op.count = op.api_count = count;
	}
	ncclGetVersion(&version);
	if (func == PLAYER_BROADCAST && version >= CALL_ONLY_SINCE) {
		if (has_profiler)
			player_enqueue_api_only(&comm->played, &op);
		return SUCCESS;
	}
	return issue(comm, op);
}

int ncclGroupStart(void)
{
	in_group = true;
	return SUCCESS;
}

int ncclGroupEnd(void)
{
	in_group = false;
	flush();
	return SUCCESS;
}

/* As if rank r had filled its buffer with r + 1. */
int ncclAllReduce(const float *send, float *recv, size_t count, int type, int op, struct comm *comm,
                  void *stream)
{
	float others = (float)(comm->played.n_ranks * (comm->played.n_ranks + 1)) / 2 -
	               (float)(comm->played.rank + 1);

	(void)op;
	(void)stream;
	for (size_t i = 0; type == TYPE_FLOAT32 && i < count; i++)
		recv[i] = send[i] + others;
	return collective(comm, PLAYER_ALLREDUCE, count, type);
}

int ncclReduceScatter(const void *send, void *recv, size_t count, int type, int op,
                      struct comm *comm, void *stream)
{
	(void)send;
	(void)recv;
	(void)op;
	(void)stream;
	return collective(comm, PLAYER_REDUCESCATTER, count, type);
}

int ncclReduce(const void *send, void *recv, size_t count, int type, int op, int root,
               struct comm *comm, void *stream)
{
	(void)send;
	(void)recv;
	(void)op;
	(void)root;
	(void)stream;
	return collective(comm, PLAYER_REDUCE, count, type);
}

int ncclBroadcast(const void *send, void *recv, size_t count, int type, int root, struct comm *comm,
                  void *stream)
{
	(void)send;
	(void)recv;
	(void)root;
	(void)stream;
	return collective(comm, PLAYER_BROADCAST, count, type);
}

int ncclAllGather(const void *send, void *recv, size_t count, int type, struct comm *comm,
                  void *stream)
{
	(void)send;
	(void)recv;
	(void)stream;
	return collective(comm, PLAYER_ALLGATHER, count, type);
}

int ncclSend(const void *send, size_t count, int type, int peer, struct comm *comm, void *stream)
{
	(void)send;
	(void)stream;
	return type == TYPE_FLOAT32 ? issue(comm, player_p2p(PLAYER_SEND, peer, 4 * count))
	                            : INVALID_ARGUMENT;
}

int ncclRecv(void *recv, size_t count, int type, int peer, struct comm *comm, void *stream)
{
	(void)recv;
	(void)stream;
	return type == TYPE_FLOAT32 ? issue(comm, player_p2p(PLAYER_RECV, peer, 4 * count))
	                            : INVALID_ARGUMENT;
}
