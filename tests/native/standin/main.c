/* SPDX-License-Identifier: Apache-2.0 */
/* main.c - the application: compute, communicate, again, like a training loop. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "api.h"
#include "comm.h"
#include "fail.h"
#include "gpu.h"
#include "gpuclock.h"
#include "loader.h"
#include "oplog.h"
#include "options.h"
#include "profiler.h"
#include "progress.h"
#include "rendezvous.h"

struct app {
	struct options opt;
	struct world world;
	struct comm comms[COMM_KINDS];
	struct oplog log;
	uint64_t begin_ns, said_ns;
	uint64_t steps;
};

/* A zero of its own for the GPU's clock: days to years away from the host's. */
static uint64_t random_offset_ns(void)
{
	uint64_t bits;

	if (getrandom(&bits, sizeof(bits), 0) != sizeof(bits))
		die("no random number");
	return 100000 * NS_PER_S + bits % (100000000 * NS_PER_S);
}

static void create(struct app *app)
{
	world_join(&app->world, &app->opt);
	oplog_open(&app->log, app->opt.log_dir, app->world.rank);
	gpu_offset_ns = random_offset_ns();
	cuda_load();
	prof_offer((int)app->opt.api);
	for (int i = 0; i < app->opt.n_comms; i++)
		comm_describe(&app->comms[i], app->opt.comms[i], &app->world);
	comm_connect(app->comms, app->opt.n_comms, &app->world, &app->opt);
	for (int i = 0; i < app->opt.n_comms; i++) {
		prof_init(&app->comms[i]); /* before the thread that tells it of the kernels */
		progress_start(&app->comms[i], &app->log);
	}
	gpu_start();
}

static void compute(const struct app *app)
{
	bool slow = app->opt.slow_rank == app->world.rank;

	sleep_ms(app->opt.compute_ms + (slow ? app->opt.slow_ms : 0));
	if (app->opt.slow_gpu_rank == app->world.rank && app->opt.slow_gpu_ms)
		gpu_compute(app->opt.slow_gpu_ms);
}

/* The operation to call, which with --mismatch is another than that of the others. */
static enum op_kind own_choice(struct app *app, enum op_kind op)
{
	struct options *opt = &app->opt;

	if (opt->mismatch_rank != app->world.rank || app->steps < opt->mismatch_step)
		return op;
	printf("rank %d calls something else in step %llu\n", app->world.rank,
	       (unsigned long long)app->steps);
	fflush(stdout);
	opt->mismatched = true;
	return op == OP_ALLREDUCE ? OP_ALLGATHER : OP_ALLREDUCE;
}

static void use_comm(struct app *app, struct comm *comm)
{
	const struct options *opt = &app->opt;

	for (int o = 0; o < opt->n_ops && comm->n_ranks > 1; o++)
		for (int s = 0; s < opt->n_sizes; s++) {
			compute(app);
			api_run(comm, own_choice(app, opt->ops[o]), opt->sizes[s], opt);
			if (!opt->overlap)
				gpu_sync();
		}
	gpu_sync();
	if (opt->barrier)
		world_barrier(&app->world);
}

/* The communicator to use next, which with --crossed is another than that of the others. */
static int own_order(const struct app *app, int i)
{
	const struct options *opt = &app->opt;
	bool crossed = opt->crossed_rank == app->world.rank && app->steps >= opt->crossed_step;

	return crossed ? opt->n_comms - 1 - i : i;
}

static void say(struct app *app, bool last)
{
	uint64_t now = host_ns();
	double seconds = (double)(now - app->begin_ns) / (double)NS_PER_S;

	if (app->world.rank || (!last && now - app->said_ns < NS_PER_S))
		return;
	app->said_ns = now;
	printf("%s: %llu steps in %.1f s, %.2f steps/s\n", last ? "done" : "running",
	       (unsigned long long)app->steps, seconds, (double)app->steps / seconds);
	fflush(stdout);
}

static bool more(const struct app *app)
{
	const struct options *opt = &app->opt;

	return (!opt->steps || app->steps < opt->steps) &&
	       (!opt->seconds || host_ns() - app->begin_ns < opt->seconds * NS_PER_S);
}

/* Take memory until somebody ends this process: the kernel, where its cgroup has a limit. */
static void eat(void)
{
	const size_t piece = 8 << 20;

	for (size_t left = 2000000000; left > piece; left -= piece) {
		char *got = malloc(piece);

		if (got)
			memset(got, 1, piece);
	}
	die("2 GB of memory, and nobody has killed this rank");
}

static void loop(struct app *app)
{
	const struct options *opt = &app->opt;

	app->begin_ns = app->said_ns = host_ns();
	while (world_agree(&app->world, more(app))) {
		if ((opt->hang_rank == app->world.rank || opt->hang_rank == HANG_ALL) &&
		    app->steps >= opt->hang_step) {
			printf("rank %d hangs in step %llu\n", app->world.rank,
			       (unsigned long long)app->steps);
			fflush(stdout);
			for (;;)
				pause();
		}
		if (opt->eat_rank == app->world.rank && app->steps >= opt->eat_step)
			eat();
		for (int i = 0; i < opt->n_comms; i++)
			use_comm(app, &app->comms[own_order(app, i)]);
		app->steps++;
		say(app, false);
	}
	say(app, true);
}

static void destroy(struct app *app)
{
	world_barrier(&app->world); /* nobody hangs up on a neighbour that still sends */
	gpu_stop();
	for (int i = 0; i < app->opt.n_comms; i++) {
		progress_stop(&app->comms[i]);
		prof_finalize(&app->comms[i]);
		comm_disconnect(&app->comms[i]);
	}
	world_leave(&app->world);
}

int main(int argc, char **argv)
{
	static struct app app;

	options_parse(&app.opt, argc, argv);
	fail_catch_signals();
	create(&app);
	loop(&app);
	if (app.opt.finalize)
		destroy(&app);
	return 0;
}
