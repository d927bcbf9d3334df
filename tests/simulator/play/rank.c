/* SPDX-License-Identifier: Apache-2.0 */
/* rank.c - NCCL in one rank: the application's thread, and a little after the GPU the kernels'
 * events. */
#include "rank.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pending.h"
#include "player.h"
#include "script.h"
#include "virtual.h"

#define FOR_EVER INT64_MAX
#define HEARD_LEAST_NS 10000   /* NCCL's thread polls: it hears of a kernel so much later, */
#define HEARD_SPREAD_NS 20000u /* and up to so much more */
#define HEARD_MOST_NS (HEARD_LEAST_NS + (int64_t)HEARD_SPREAD_NS)
#define FLOAT_BYTES 4

/* One row of the script: a lone operation, or the Sends and Recvs of an AlltoAll, which run
 * together. */
struct unit {
	struct unit *next_free;
	const struct script_op *row;
	unsigned count;
	bool gone; /* its communicator is */
	int64_t begin_heard_ns;
	struct player_op ops[];
};

struct live_comm {
	struct player_comm comm;
	bool live, ended;
	struct unit *free_all_to_all;
};

static struct script script;
static struct player player;
static struct live_comm *comms;
static struct unit *free_single;
static struct pending pending;
static struct player_op templates[PLAYER_FUNCS];
static uint64_t next_row;

int ncclGetVersion(int *version);

/* A release that has this profiler interface as its highest. */
int ncclGetVersion(int *version)
{
	static const int codes[] = { 0, 22307, 22407, 22602, 22707, 22809, 23007, 23203 };

	*version = codes[script.head.api];
	return 0;
}

static void __attribute__((noreturn)) fail(const char *why, uint64_t number)
{
	fprintf(stderr, "rank %d: %s %llu\n", (int)script.head.procid, why,
	        (unsigned long long)number);
	_exit(2);
}

static void say(int level, unsigned long subsystem, const char *line)
{
	(void)level;
	(void)subsystem;
	fprintf(stderr, "rank %d: %s\n", (int)script.head.procid, line);
}

/* --- operations -------------------------------------------------------------------------- */

static enum player_func func_of(unsigned func)
{
	static const enum player_func funcs[SCRIPT_FUNCS] = {
		[SCRIPT_ALLREDUCE] = PLAYER_ALLREDUCE,
		[SCRIPT_ALLGATHER] = PLAYER_ALLGATHER,
		[SCRIPT_REDUCESCATTER] = PLAYER_REDUCESCATTER,
		[SCRIPT_BROADCAST] = PLAYER_BROADCAST,
		[SCRIPT_REDUCE] = PLAYER_REDUCE,
		[SCRIPT_ALLTOALL] = PLAYER_SEND,
		[SCRIPT_SEND] = PLAYER_SEND,
		[SCRIPT_RECV] = PLAYER_RECV,
	};

	return funcs[func];
}

static void make_templates(void)
{
	for (unsigned i = 0; i < PLAYER_FUNCS; i++)
		templates[i] = i == PLAYER_SEND || i == PLAYER_RECV
		                   ? player_p2p((enum player_func)i, 0, 0)
		                   : player_coll((enum player_func)i, 0);
}

static unsigned count_of(const struct script_op *row)
{
	return row->func == SCRIPT_ALLTOALL ? 2 * (unsigned)script.comms[row->comm].nranks : 1;
}

static struct unit *take_unit(const struct script_op *row)
{
	unsigned count = count_of(row);
	struct unit **from =
	    row->func == SCRIPT_ALLTOALL ? &comms[row->comm].free_all_to_all : &free_single;
	struct unit *unit = *from;

	if (unit)
		*from = unit->next_free;
	else
		unit = calloc(1, sizeof(*unit) + count * sizeof(unit->ops[0]));
	if (!unit)
		fail("no memory for operation", next_row);
	unit->row = row;
	unit->count = count;
	unit->gone = false;
	return unit;
}

static void give_back(struct unit *unit)
{
	struct unit **to = unit->row->func == SCRIPT_ALLTOALL
	                       ? &comms[unit->row->comm].free_all_to_all
	                       : &free_single;

	unit->next_free = *to;
	*to = unit;
}

static void fill_op(struct player_op *op, const struct script_op *row, enum player_func func,
                    int peer)
{
	const struct script_comm *comm = &script.comms[row->comm];
	size_t bytes = (size_t)row->bytes;

	/* The handles from `kernel` on are the player's, which never clears them. */
	memcpy(op, &templates[func], offsetof(struct player_op, kernel));
	op->channels = row->channels ? row->channels : 1;
	op->algo = comm->algo;
	op->proto = comm->proto;
	op->peer = peer;
	op->count = op->api_count = bytes;
	if (bytes % FLOAT_BYTES) {
		op->datatype = op->api_datatype = "ncclInt8";
		return;
	}
	op->api_count = bytes / FLOAT_BYTES;
	if (!strcmp(op->datatype, "ncclFloat32"))
		op->count = bytes / FLOAT_BYTES;
}

static void fill_unit(struct unit *unit)
{
	const struct script_op *row = unit->row;

	if (row->func != SCRIPT_ALLTOALL) {
		fill_op(&unit->ops[0], row, func_of(row->func), row->peer);
		return;
	}
	const struct script_comm *comm = &script.comms[row->comm];

	/* NCCL's schedule begins with the rank itself (src/init.cc, p2pSchedule). */
	for (unsigned i = 0; i < unit->count; i++)
		fill_op(&unit->ops[i], row, i % 2 ? PLAYER_RECV : PLAYER_SEND,
		        (int)(((unsigned)comm->rank + i / 2) % (unit->count / 2)));
}

/* What a rank sends to itself is copied without a kernel that is told of. */
static bool has_kernel(const struct unit *unit, const struct player_op *op)
{
	return op->peer < 0 || op->peer != script.comms[unit->row->comm].rank;
}

/* --- NCCL's thread ----------------------------------------------------------------------- */

/* splitmix64, of the row and of which of its two ends. */
static int64_t heard_ns(const struct script_op *row, bool is_end)
{
	uint64_t x = script.head.seed + 2 * (uint64_t)(row - script.operations) + is_end;

	x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return HEARD_LEAST_NS + (int64_t)((x >> 32) * HEARD_SPREAD_NS >> 32);
}

static void expect_begin(struct unit *unit)
{
	if (unit->row->begin_ns == SCRIPT_NEVER)
		return;
	unit->begin_heard_ns = unit->row->begin_ns + heard_ns(unit->row, false);
	pending_push(&pending, unit->begin_heard_ns, unit, false);
}

static void expect_end(struct unit *unit)
{
	int64_t told_ns;

	if (unit->row->end_ns == SCRIPT_NEVER)
		return;
	told_ns = unit->row->end_ns + heard_ns(unit->row, true);
	if (told_ns < unit->begin_heard_ns)
		told_ns = unit->begin_heard_ns;
	pending_push(&pending, told_ns, unit, true);
}

static uint64_t gpu_ns(int64_t true_ns)
{
	return script.head.gpu0_ns + (uint64_t)true_ns;
}

static void tell_kernels(struct unit *unit, bool is_end)
{
	uint64_t ns = gpu_ns(is_end ? unit->row->end_ns : unit->row->begin_ns);
	struct player_comm *comm = &comms[unit->row->comm].comm;

	for (unsigned i = 0; i < unit->count; i++) {
		struct player_op *op = &unit->ops[i];

		for (unsigned channel = 0; channel < op->channels && has_kernel(unit, op);
		     channel++) {
			if (is_end)
				player_kernel_stop(comm, op, channel, ns);
			else
				player_kernel_start(comm, op, channel, ns);
		}
	}
}

/* The next event of a kernel. */
static void hear(void)
{
	struct pending_event event = *pending_first(&pending);

	pending_pop(&pending);
	if (event.unit->gone) {
		give_back(event.unit);
		return;
	}
	virtual_advance(event.told_ns);
	tell_kernels(event.unit, event.is_end);
	if (event.is_end)
		give_back(event.unit);
	else
		expect_end(event.unit);
}

/* --- the application's thread ------------------------------------------------------------ */

static void call_unit(struct player_group *group, struct unit *unit)
{
	fill_unit(unit);
	for (unsigned i = 0; i < unit->count; i++)
		player_group_call(group, &unit->ops[i]);
	expect_begin(unit);
}

static bool is_of_group(const struct script_op *row, const struct script_op *first)
{
	return row < script.operations + script.head.operations && first->group &&
	       row->group == first->group && row->comm == first->comm;
}

/* The next row, with those that are in a group with it. */
static void call(void)
{
	const struct script_op *first = &script.operations[next_row], *row = first;
	struct live_comm *live = &comms[first->comm];
	struct player_group group;

	if (!live->live)
		fail("no communicator lives for operation", next_row);
	virtual_advance(first->call_ns);
	player_group_begin(&group, &live->comm,
	                   first->group || first->func == SCRIPT_ALLTOALL ? 2 : 1, false);
	do
		call_unit(&group, take_unit(row++));
	while (is_of_group(row, first));
	player_group_launch(&group);
	player_group_tasks(&group);
	player_group_end(&group);
	next_row = (uint64_t)(row - script.operations);
}

/* --- communicators ----------------------------------------------------------------------- */

static void create(unsigned i)
{
	const struct script_comm *row = &script.comms[i];

	virtual_advance(row->created_ns);
	comms[i].comm = (struct player_comm){
		.name = row->name[0] ? row->name : NULL,
		.id = row->id,
		.n_nodes = row->nnodes,
		.n_ranks = row->nranks,
		.rank = row->rank,
	};
	player_init(&player, &comms[i].comm);
	comms[i].live = true;
}

static void destroy(unsigned i)
{
	for (size_t at = 0; at < pending.count; at++)
		if (pending.events[at].unit->row->comm == i)
			pending.events[at].unit->gone = true;
	player_finalize(&comms[i].comm);
	comms[i].live = false;
	comms[i].ended = true;
}

/* Returns the communicator that is created (or destroyed) next, head.comms when there is none; and
 * when. */
static unsigned next_change(bool created, int64_t *at_ns)
{
	unsigned found = (unsigned)script.head.comms;

	*at_ns = FOR_EVER;
	for (unsigned i = 0; i < script.head.comms; i++) {
		const struct script_comm *row = &script.comms[i];
		bool is_due = created ? !comms[i].live && !comms[i].ended
		                      : comms[i].live && row->destroyed_ns != SCRIPT_NEVER;
		int64_t ns = created ? row->created_ns : row->destroyed_ns + HEARD_MOST_NS;

		if (is_due && ns < *at_ns) {
			*at_ns = ns;
			found = i;
		}
	}
	return found;
}

/* --- the rank ---------------------------------------------------------------------------- */

static int64_t next_call_ns(void)
{
	return next_row < script.head.operations ? script.operations[next_row].call_ns : FOR_EVER;
}

static int64_t next_heard_ns(void)
{
	const struct pending_event *first = pending_first(&pending);

	return first ? first->told_ns : FOR_EVER;
}

/* Everything before the end, in the order of time. */
static void play_until(int64_t end_ns)
{
	int64_t created_ns, destroyed_ns;
	unsigned created = next_change(true, &created_ns);
	unsigned destroyed = next_change(false, &destroyed_ns);

	for (;;) {
		int64_t heard_at_ns = next_heard_ns(), call_ns = next_call_ns();
		int64_t change_ns = created_ns < destroyed_ns ? created_ns : destroyed_ns;
		int64_t event_ns = heard_at_ns < call_ns ? heard_at_ns : call_ns;

		if ((event_ns < change_ns ? event_ns : change_ns) > end_ns)
			break;
		if (created_ns <= event_ns && created_ns <= destroyed_ns) {
			create(created);
		} else if (heard_at_ns <= call_ns && heard_at_ns <= destroyed_ns) {
			hear();
			continue;
		} else if (call_ns <= destroyed_ns) {
			call();
			continue;
		} else {
			virtual_advance(destroyed_ns);
			destroy(destroyed);
		}
		created = next_change(true, &created_ns);
		destroyed = next_change(false, &destroyed_ns);
	}
	virtual_advance(end_ns);
}

static void finalize(void)
{
	for (unsigned i = 0; i < script.head.comms; i++)
		if (comms[i].live)
			destroy(i);
	player_close(&player);
}

static void set_environment(void)
{
	const char *at = script.environment, *end = at + script.head.environment_bytes;

	for (; at < end; at += strlen(at) + 1)
		if (putenv(strdup(at)))
			fail("no memory for the environment", 0);
}

static void check_operations(void)
{
	for (uint64_t i = 0; i < script.head.operations; i++)
		if (script.operations[i].comm >= script.head.comms ||
		    script.operations[i].func >= SCRIPT_FUNCS)
			fail("no such communicator or function in operation", i);
}

static void begin(const char *plugin, const char *cuda)
{
	static struct virtual_world world;

	world =
	    (struct virtual_world){ script.head.real0_ns, script.head.mono0_ns, script.head.drift,
	                            script.head.pid,      script.head.minor,    script.head.host };
	if (!virtual_begin(&world))
		exit(3);
	player_on_log(say);
	if (!dlopen(cuda, RTLD_NOW | RTLD_GLOBAL)) {
		fprintf(stderr, "%s\n", dlerror());
		exit(2);
	}
	if (!player_open(&player, plugin, (int)script.head.api))
		exit(2);
}

void rank_play(const char *plugin, const char *cuda, const char *path, struct rank_told *told)
{
	bool is_killed;
	uint64_t counter_reads;

	script_read(&script, path);
	told->procid = script.head.procid;
	is_killed = script.head.end == SCRIPT_KILLED;
	check_operations();
	set_environment();
	make_templates();
	comms = calloc(script.head.comms + 1, sizeof(*comms));
	begin(plugin, cuda);
	play_until(script.head.end_ns + (is_killed ? 0 : HEARD_MOST_NS));
	counter_reads = virtual_counter_reads();
	told->turns = virtual_turns();
	if (counter_reads > 1000)
		fail("the plugin measures by the counter, which stands still; it was read",
		     counter_reads);
	told->done = 1;
	if (is_killed)
		syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
	if (script.head.end == SCRIPT_FINALIZED)
		finalize();
	exit(0);
}
