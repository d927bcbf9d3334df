/* SPDX-License-Identifier: Apache-2.0 */
/* play.c - NCCL by a script: play PLUGIN CUDA VERSION step , step , ...
 *
 * NCCL of that interface version takes the highest table of the plugin that it knows; status 3 when
 * there is none. Each step that has something to say prints a JSON line. The steps, with what is
 * not said being as in this list, `comm` counting communicators from 0:
 *
 *	comm id=1 name= ranks=2 nodes=1 rank=0         a communicator; without name= it has none
 *	coll comm=0 func=AllReduce bytes= times=1 ...  collectives, as the application and NCCL tell
 * them p2p comm=0 func=Send peer=1 bytes= ...         messages count= type=ncclFloat32 instead of
 * bytes=; grow=0 bytes more each time; null=1: no words channels=8 (2), from first=0, tag=0;
 * ns=100000 on each, which starts stagger=0 after the one before; kernel=all, none, starts (they
 * never end) or twice (they end twice, the second time in another thread); real_us=0 of the host's
 * time call comm=0 func= bytes= times=1               of which only the Api events are told engine
 * comm=0 func= bytes= times=1             by the copy engine stray comm= times=1          starts
 * with the communicator's context, NULL without comm= late   kernel events of the last operation
 *	finalize comm=0
 *	set write_ms= short_of_memory= clock_step_s= mkdir_race=   (hooks.h)
 *	await writes= | stuck= | ms=                   more of these in other threads, for a second;
 * or a time look                                           memory, CPU time, log lines, NCCL's mask
 *	pause                                          until a line comes in
 *	exit                                           exit(), communicators and all
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "hooks.h"
#include "player.h"
#include "script.h"

#define COMMS 64
#define FLOAT_BYTES 4
#define MIB (1 << 20)

static struct player player;
static struct player_comm comms[COMMS];
static int n_comms;
static struct player_op last;
static struct player_comm *last_comm;
static _Atomic uint64_t log_lines;

static void count_log(int level, unsigned long subsystem, const char *line)
{
	(void)level;
	(void)subsystem;
	(void)line;
	log_lines++;
}

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static double ms_since(uint64_t start_ns)
{
	return (double)(clock_ns(CLOCK_MONOTONIC) - start_ns) / 1e6;
}

static struct player_comm *comm_of(const struct step *step)
{
	int64_t i = script_number(step, "comm", 0);

	if (i < 0 || i >= n_comms)
		script_fail("%s: no communicator %lld", step->verb, (long long)i);
	return &comms[i];
}

static void do_comm(const struct step *step)
{
	struct player_comm *comm = &comms[n_comms++];
	uint64_t start_ns = clock_ns(CLOCK_MONOTONIC);

	if (n_comms > COMMS)
		script_fail("more than %d communicators", COMMS);
	comm->id = (uint64_t)script_number(step, "id", 1);
	comm->name = script_text(step, "name", NULL);
	comm->n_ranks = (int)script_number(step, "ranks", 2);
	comm->n_nodes = (int)script_number(step, "nodes", 1);
	comm->rank = (int)script_number(step, "rank", 0);
	player_init(&player, comm);
	printf("{\"step\":\"comm\",\"ms\":%.3f,\"context\":%s,\"mask\":%d}\n", ms_since(start_ns),
	       comm->context ? "true" : "false", player.mask);
}

static void do_finalize(const struct step *step)
{
	uint64_t start_ns = clock_ns(CLOCK_MONOTONIC);

	player_finalize(comm_of(step));
	printf("{\"step\":\"finalize\",\"ms\":%.3f}\n", ms_since(start_ns));
}

static enum player_func func_of(const struct step *step, const char *word)
{
	for (enum player_func func = 0; func < PLAYER_FUNCS; func++)
		if (!strcmp(player_coll(func, MIB).func_word, word))
			return func;
	script_fail("%s: no function %s", step->verb, word);
}

static struct player_op op_of(const struct step *step, bool p2p)
{
	enum player_func func =
	    func_of(step, script_text(step, "func", p2p ? "Send" : "AllReduce"));
	size_t bytes = (size_t)script_number(step, "bytes", MIB);
	struct player_op op = p2p ? player_p2p(func, (int)script_number(step, "peer", 1), bytes)
	                          : player_coll(func, bytes);

	op.count = (size_t)script_number(step, "count", (int64_t)op.count);
	op.datatype = script_text(step, "type", op.datatype);
	op.api_datatype = script_text(step, "type", op.api_datatype);
	op.channels = (uint8_t)script_number(step, "channels", op.channels);
	op.first_channel = (uint8_t)script_number(step, "first", 0);
	op.user_tag = (uint64_t)script_number(step, "tag", 0);
	if (script_number(step, "null", 0))
		op.func_word = op.datatype = op.api_datatype = op.algo = op.proto = NULL;
	return op;
}

struct course {
	const char *kernel;
	uint64_t ns, stagger_ns, real_us;
};

/* Channels beyond 63 are no channels: the player would fold them. */
static void play_odd_kernel(struct player_comm *comm, const struct player_op *op, uint64_t start_ns,
                            uint64_t ns)
{
	void *handles[256];

	for (unsigned i = 0; i < op->channels; i++)
		handles[i] = play_kernel_ch(comm, op->handle, op->first_channel + i, start_ns);
	for (unsigned i = 0; i < op->channels; i++)
		play_kernel_ch_stop(comm, handles[i], start_ns + ns);
}

struct stops {
	struct player_comm *comm;
	struct player_op *op;
	const struct course *course;
	uint64_t start_ns;
};

static void *stop_all(void *argument)
{
	const struct stops *stops = argument;

	for (unsigned i = 0; i < stops->op->channels; i++)
		player_kernel_stop(stops->comm, stops->op, i,
		                   stops->start_ns + i * stops->course->stagger_ns +
		                       stops->course->ns);
	return NULL;
}

/* From a thread of its own, as NCCL's kernel events are. */
static void stop_again(struct stops *stops)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, stop_all, stops))
		script_fail("no thread");
	pthread_join(thread, NULL);
}

static void play_kernel(struct player_comm *comm, struct player_op *op, const struct course *course,
                        uint64_t start_ns)
{
	struct stops stops = { comm, op, course, start_ns };

	if (!strcmp(course->kernel, "none"))
		return;
	if (op->first_channel + op->channels > (int)PLAYER_CHANNELS) {
		play_odd_kernel(comm, op, start_ns, course->ns);
		return;
	}
	for (unsigned i = 0; i < op->channels; i++)
		player_kernel_start(comm, op, i, start_ns + i * course->stagger_ns);
	if (course->real_us)
		usleep((useconds_t)course->real_us);
	if (!strcmp(course->kernel, "starts"))
		return;
	stop_all(&stops);
	if (!strcmp(course->kernel, "twice"))
		stop_again(&stops);
}

static void do_op(const struct step *step, bool p2p)
{
	struct player_comm *comm = comm_of(step);
	struct player_op op = op_of(step, p2p);
	struct course course = {
		.kernel = script_text(step, "kernel", "all"),
		.ns = (uint64_t)script_number(step, "ns", 100000),
		.stagger_ns = (uint64_t)script_number(step, "stagger", 0),
		.real_us = (uint64_t)script_number(step, "real_us", 0),
	};
	size_t grow = (size_t)script_number(step, "grow", 0) / FLOAT_BYTES;
	int64_t times = script_number(step, "times", 1);
	uint64_t start_ns = clock_ns(CLOCK_MONOTONIC) - course.ns;
	struct hook_counts before = hooks_counts(), after;

	for (int64_t i = 0; i < times; i++, op.count += grow) {
		player_enqueue(comm, &op);
		/* What takes the host's time goes by its clock, however slow the host is: else the
		 * GPU's would drift away. */
		if (course.real_us)
			start_ns = clock_ns(CLOCK_MONOTONIC) - course.ns;
		play_kernel(comm, &op, &course, start_ns);
		start_ns += 1000;
	}
	after = hooks_counts();
	last = op;
	last_comm = comm;
	printf("{\"step\":\"%s\",\"locks\":%llu,\"clocks\":%llu}\n", step->verb,
	       (unsigned long long)(after.locks - before.locks),
	       (unsigned long long)(after.clocks - before.clocks));
}

static void do_without_task(const struct step *step, bool engine)
{
	struct player_comm *comm = comm_of(step);
	struct player_op op = op_of(step, false);

	for (int64_t i = script_number(step, "times", 1); i > 0; i--) {
		if (engine)
			player_enqueue_ce(comm, &op);
		else
			player_enqueue_api_only(comm, &op);
	}
}

/* Starts only: a handle that was not written is of no use. */
static void do_stray(const struct step *step)
{
	struct player_comm nobody = { .player = &player };
	struct player_comm *comm = script_text(step, "comm", NULL) ? comm_of(step) : &nobody;
	struct player_op op = op_of(step, false);
	unsigned before = player.unwritten;

	for (int64_t i = script_number(step, "times", 1); i > 0; i--)
		play_coll(comm, NULL, NULL, &op);
	printf("{\"step\":\"stray\",\"unwritten\":%u}\n", player.unwritten - before);
}

static void do_late(void)
{
	uint64_t now_ns = clock_ns(CLOCK_MONOTONIC);
	void *handle = play_kernel_ch(last_comm, last.handle, 0, now_ns);

	play_kernel_ch_stop(last_comm, handle, now_ns + 1000);
	play_kernel_ch_stop(last_comm, last.kernel[0], now_ns + 1000);
}

static void do_set(const struct step *step)
{
	hooks.write_ms = script_number(step, "write_ms", hooks.write_ms);
	hooks.short_of_memory = script_number(step, "short_of_memory", hooks.short_of_memory);
	hooks.clock_step_s = script_number(step, "clock_step_s", hooks.clock_step_s);
	hooks.mkdir_race = script_number(step, "mkdir_race", hooks.mkdir_race);
}

static void do_await(const struct step *step)
{
	uint64_t start_ns = clock_ns(CLOCK_MONOTONIC);
	uint64_t writes = hooks.writes + (uint64_t)script_number(step, "writes", 0);
	uint64_t stuck = (uint64_t)script_number(step, "stuck", 0);
	int64_t least_ms = script_number(step, "ms", 0);
	bool seen = false;

	while (ms_since(start_ns) < (double)least_ms || (!seen && ms_since(start_ns) < 1000)) {
		usleep(2000);
		seen = hooks.writes >= writes && hooks.writes_stuck >= stuck;
	}
	printf("{\"step\":\"await\",\"seen\":%s}\n", seen ? "true" : "false");
}

static uint64_t resident_bytes(void)
{
	unsigned long long total, resident = 0;
	FILE *file = fopen("/proc/self/statm", "re");

	if (!file || fscanf(file, "%llu %llu", &total, &resident) != 2)
		script_fail("cannot read /proc/self/statm");
	fclose(file);
	return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void do_look(void)
{
	printf("{\"step\":\"look\",\"rss_bytes\":%llu,\"cpu_ms\":%.3f,\"log_lines\":%llu,\"mask\":%"
	       "d}\n",
	       (unsigned long long)resident_bytes(),
	       (double)clock_ns(CLOCK_PROCESS_CPUTIME_ID) / 1e6, (unsigned long long)log_lines,
	       __atomic_load_n(&player.mask, __ATOMIC_RELAXED));
}

static void do_pause(void)
{
	printf("{\"step\":\"pause\"}\n");
	fflush(stdout);
	while (getchar() != '\n' && !feof(stdin))
		;
}

static void do_step(const struct step *step)
{
	if (!strcmp(step->verb, "comm"))
		do_comm(step);
	else if (!strcmp(step->verb, "coll") || !strcmp(step->verb, "p2p"))
		do_op(step, step->verb[0] == 'p');
	else if (!strcmp(step->verb, "call") || !strcmp(step->verb, "engine"))
		do_without_task(step, step->verb[0] == 'e');
	else if (!strcmp(step->verb, "stray"))
		do_stray(step);
	else if (!strcmp(step->verb, "late"))
		do_late();
	else if (!strcmp(step->verb, "finalize"))
		do_finalize(step);
	else if (!strcmp(step->verb, "set"))
		do_set(step);
	else if (!strcmp(step->verb, "await"))
		do_await(step);
	else if (!strcmp(step->verb, "look"))
		do_look();
	else if (!strcmp(step->verb, "pause"))
		do_pause();
	else if (!strcmp(step->verb, "exit"))
		exit(0);
	else
		script_fail("no step %s", step->verb);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	struct step step;
	bool found = false;

	if (argc < 4)
		script_fail("usage: play PLUGIN CUDA VERSION step , ...");
	hooks_open();
	player_on_log(count_log);
	if (!dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL))
		script_fail("%s", dlerror());
	for (int version = atoi(argv[3]); version > 0 && !found; version--)
		found = player_open(&player, argv[1], version);
	if (!found)
		return 3;
	argv += 4;
	while (script_next(&step, &argv))
		do_step(&step);
	return 0;
}
