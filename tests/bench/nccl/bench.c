/* SPDX-License-Identifier: Apache-2.0 */
/* bench.c - the two profilers, the load, the clock. */
#include "bench.h"

#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "nothing.h"

unsigned api = API;
struct side sides[SIDES] = { { .word = "nothing" }, { .word = "ours" } };
uint64_t told_ours;

void fail(const char *what)
{
	fprintf(stderr, "bench: %s\n", what);
	exit(1);
}

void say(const char *row, const char *side, double value)
{
	printf("%s %s %.3f\n", row, side, value);
}

uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t ticks(void)
{
#ifdef __x86_64__
	return __builtin_ia32_rdtsc();
#else
	return now_ns();
#endif
}

double ns_per_tick(void)
{
	static _Atomic double cached;
	uint64_t ns, tick;

	if (cached > 0)
		return cached;
	ns = now_ns();
	tick = ticks();
	while (now_ns() - ns < 20000000)
		;
	cached = (double)(now_ns() - ns) / (double)(ticks() - tick);
	return cached;
}

uint64_t other_threads_ns(void)
{
	DIR *dir = opendir("/proc/self/task");
	long self = syscall(SYS_gettid);
	unsigned long long sum = 0;

	for (struct dirent *entry; dir && (entry = readdir(dir));) {
		unsigned long long ns = 0;
		char path[64];
		FILE *file;

		if (entry->d_name[0] == '.' || strtol(entry->d_name, NULL, 10) == self)
			continue;
		snprintf(path, sizeof(path), "/proc/self/task/%.16s/schedstat", entry->d_name);
		file = fopen(path, "re");
		if (file && fscanf(file, "%llu", &ns) == 1)
			sum += ns;
		if (file)
			fclose(file);
	}
	if (dir)
		closedir(dir);
	return sum;
}

void pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET((size_t)(cpu % sysconf(_SC_NPROCESSORS_ONLN)), &set);
	sched_setaffinity(0, sizeof(set), &set);
}

unsigned coin(void)
{
	static _Thread_local uint32_t state = 2463534242u;

	state ^= state << 13;
	state ^= state >> 17;
	state ^= state << 5;
	return state >> 16 & 1u;
}

/* The GPU's clock runs as ours does: a kernel does not end before it is told, nor later. */
static uint64_t clock_of_gpu(void)
{
	return (uint64_t)((double)ticks() * ns_per_tick());
}

enum load load;
const char *const load_names[LOADS] = { [LOAD_COLLS] = "",           [LOAD_MIXED] = "mixed_",
                                        [LOAD_SENDS] = "sends_",     [LOAD_TAGGED] = "tagged_",
                                        [LOAD_COUNTED] = "counted_", [LOAD_NET] = "net_" };

static bool is_of_peers(void)
{
	return load == LOAD_SENDS || load == LOAD_COUNTED;
}

struct player_op load_op(unsigned number, unsigned channels)
{
	static const enum player_func colls[] = { PLAYER_ALLREDUCE, PLAYER_ALLGATHER,
	                                          PLAYER_REDUCESCATTER };
	unsigned kind = number % COMMS % 3 + number / COMMS % 2 * 3;
	unsigned mixed = number * 0x9e3779b1u >> 28;
	size_t bytes = load == LOAD_MIXED
	                   ? (size_t)256 << mixed
	                   : (size_t)16384 << (is_of_peers() ? 0 : number / 7 % 3 * 5);
	struct player_op op = is_of_peers()
	                          ? player_p2p(kind % 2 ? PLAYER_SEND : PLAYER_RECV, 5, bytes)
	                          : player_coll(colls[kind % 3], bytes);

	op.channels = (uint8_t)channels;
	op.first_channel = (uint8_t)(number % 5);
	op.user_tag = load == LOAD_TAGGED ? number % TAGS + 1 : 0;
	op.born_ns = clock_of_gpu();
	return op;
}

struct player_comm *load_comm(struct side *side, unsigned number)
{
	return &side->comms[number % COMMS];
}

#define NET_STEPS 4u
#define NET_STEP_BYTES 524288u

/* One channel of the operation, from the first step to the last. */
static void play_proxy(struct player_comm *comm, struct player_op *op, unsigned channel)
{
	const struct prof_proxy_op told = { .pid = getpid(),
	                                    .channel = (uint8_t)channel,
	                                    .peer = (comm->rank + 1) % comm->n_ranks,
	                                    .n_steps = NET_STEPS,
	                                    .chunk_bytes = NET_STEP_BYTES,
	                                    .is_send = 1 };
	void *proxy = play_proxy_op(comm, op->handle, &told);

	for (unsigned i = 0; i < NET_STEPS; i++) {
		void *step = play_proxy_step(comm, proxy, (int)i);

		play_state(comm, step, PROF_STATE_STEP_SEND_GPU_WAIT, 0);
		play_state(comm, step, PROF_STATE_STEP_SEND_PEER_WAIT, 0);
		play_state(comm, step, PROF_STATE_STEP_SEND_WAIT, NET_STEP_BYTES);
		play_stop(comm, step);
	}
	play_stop(comm, proxy);
}

void load_begin(void)
{
	for (unsigned side = 0; load == LOAD_COUNTED && side < SIDES; side++) {
		for (unsigned i = 0; i < COMMS; i++) {
			struct player_op op = player_p2p(PLAYER_SEND, 0, 4096);

			player_enqueue(load_comm(&sides[side], i), &op);
		}
	}
	told_ours += load == LOAD_COUNTED ? COMMS : 0;
}

void load_kernel(struct side *side, struct player_op *op, unsigned number)
{
	struct player_comm *comm = load_comm(side, number);

	if (load == LOAD_NET && op->mask & PROF_PROXY_OP)
		for (unsigned i = 0; i < op->channels; i++)
			play_proxy(comm, op, i);
	uint64_t stop_ns = clock_of_gpu(), start_ns = op->born_ns + (stop_ns - op->born_ns) / 2;

	if (start_ns < side->over_ns[number % COMMS])
		start_ns = side->over_ns[number % COMMS];
	side->over_ns[number % COMMS] = stop_ns;
	if (number % 4) {
		player_kernel(comm, op, start_ns, stop_ns);
		return;
	}
	for (unsigned i = 0; i < op->channels; i++) {
		player_kernel_start(comm, op, i, start_ns);
		player_kernel_stop(comm, op, i, stop_ns);
	}
}

void comm_name(struct player_comm *comm, unsigned number)
{
	static char names[64][16];

	snprintf(names[number % 64], sizeof(names[0]), "comm%u", number % 64);
	*comm = (struct player_comm){
		.name = names[number % 64], .id = number + 1, .n_nodes = 2, .n_ranks = 8
	};
}

static void open_comms(struct side *side)
{
	for (unsigned i = 0; i < COMMS; i++) {
		comm_name(&side->comms[i], i);
		player_init(&side->player, &side->comms[i]);
	}
}

/* Plays one operation against ours: the types of event that get a handle. */
static uint64_t types_answered(struct side *side)
{
	struct player_op op = load_op(0, 1), p2p = load_op(COMMS + 1, 1);
	struct player_group group;
	uint64_t types = 0;

	player_group_begin(&group, &side->comms[0], 2, false);
	player_group_call(&group, &op);
	player_group_call(&group, &p2p);
	player_group_launch(&group);
	player_group_tasks(&group);
	types |= (group.api ? PROF_GROUP_API : 0) | (group.handle ? PROF_GROUP : 0);
	types |= (op.api ? PROF_COLL_API : 0) | (p2p.api ? PROF_P2P_API : 0);
	types |= (op.handle ? PROF_COLL : 0) | (p2p.handle ? PROF_P2P : 0);
	player_group_end(&group);
	load_kernel(side, &op, 0);
	load_kernel(side, &p2p, COMMS);
	types |= op.kernel[op.first_channel] ? PROF_KERNEL_CH : 0;
	types |= side->player.mask & (PROF_PROXY_OP | PROF_PROXY_STEP);
	told_ours += 2;
	return types;
}

void ours_open(const char *ours)
{
	if (!player_open(&sides[OURS].player, ours, (int)api))
		exit(1);
}

void sides_open(const char *nothing, const char *ours)
{
	struct side *floor = &sides[NOTHING];
	void (*answer)(int mask, uint64_t types);

	ours_open(ours);
	open_comms(&sides[OURS]);
	if (!(sides[OURS].player.mask & PROF_KERNEL_CH))
		fail("the profiler asks for no kernel events: is it switched on?");
	if (!player_open(&floor->player, nothing, (int)api))
		exit(1);
	answer = (void (*)(int, uint64_t))dlsym(floor->player.library, "nothing_answer");
	if (!answer)
		fail("the floor has no nothing_answer()");
	answer(sides[OURS].player.mask, types_answered(&sides[OURS]));
	open_comms(floor);
}

void sides_close(void)
{
	for (unsigned side = 0; side < SIDES; side++)
		for (unsigned i = 0; sides[side].player.library && i < COMMS; i++)
			player_finalize(&sides[side].comms[i]);
	say("told", "ours", (double)told_ours);
}
