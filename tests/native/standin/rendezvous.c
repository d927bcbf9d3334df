/* SPDX-License-Identifier: Apache-2.0 */
#include "rendezvous.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fail.h"
#include "gpuclock.h"
#include "net.h"

#define MAGIC 0x4e535431u
#define POLL_MS 10

struct hello {
	uint32_t magic;
	int32_t rank, n_ranks;
	struct peer peer;
};

static int env_number(const char *name, int missing)
{
	const char *text = getenv(name);
	char *end;
	long value;

	if (!text || !*text)
		return missing;
	value = strtol(text, &end, 10);
	if (*end || value < 0 || value > 1000000)
		die("%s=%s is not a number of ours", name, text);
	return (int)value;
}

/* RANK and the like come from a launcher that starts several processes in one task of Slurm's. */
static int place(const char *launchers, const char *slurms, int missing)
{
	return env_number(launchers, env_number(slurms, missing));
}

static const char *env_or(const char *name, const char *missing)
{
	const char *text = getenv(name);

	return text && *text ? text : missing;
}

static void choose_dir(struct world *world, const struct options *opt)
{
	int n;

	if (opt->rendezvous)
		n = snprintf(world->dir, sizeof(world->dir), "%s", opt->rendezvous);
	else /* A requeued job must not find what its first attempt left. */
		n = snprintf(world->dir, sizeof(world->dir), ".nccl-standin-%s.%s%s%s",
		             env_or("SLURM_JOB_ID", "x"), env_or("SLURM_STEP_ID", "x"),
		             getenv("SLURM_RESTART_COUNT") ? "." : "",
		             env_or("SLURM_RESTART_COUNT", ""));
	if (n < 0 || (size_t)n >= sizeof(world->dir))
		die("the name of the rendezvous directory is too long");
	snprintf(world->file, sizeof(world->file), "%s/0", world->dir);
}

static void publish(struct world *world, uint16_t port)
{
	char beside[sizeof(world->file) + 16];
	FILE *file;

	if (mkdir(world->dir, 0700) && errno != EEXIST)
		die("cannot make %s: %s", world->dir, strerror(errno));
	snprintf(beside, sizeof(beside), "%s.tmp", world->file);
	file = fopen(beside, "we");
	if (!file)
		die("cannot write %s: %s", beside, strerror(errno));
	fprintf(file, "127.0.0.1:%u\n", port);
	if (fclose(file) || rename(beside, world->file))
		die("cannot write %s: %s", world->file, strerror(errno));
	fail_set_cleanup(world->file, world->dir);
}

/* Rank 0: takes one connection of each rank, then tells each of them of all. */
static void gather(struct world *world, uint64_t deadline)
{
	struct hello hello;
	int missing = world->n_ranks - 1;

	while (missing) {
		int fd = net_accept(world->listener, deadline);

		if (fd < 0)
			die("%d of %d tasks did not come: %s", missing, world->n_ranks,
			    strerror(-fd));
		if (net_recv(fd, &hello, sizeof(hello), deadline) || hello.magic != MAGIC ||
		    hello.n_ranks != world->n_ranks || hello.rank < 1 ||
		    hello.rank >= world->n_ranks || world->star[hello.rank] >= 0) {
			close(fd); /* no task of this run */
			continue;
		}
		world->star[hello.rank] = fd;
		world->peers[hello.rank] = hello.peer;
		missing--;
	}
	if (getrandom(&world->nonce, sizeof(world->nonce), 0) != sizeof(world->nonce))
		die("no random number: %s", strerror(errno));
	for (int i = 1; i < world->n_ranks; i++)
		if (net_send(world->star[i], &world->nonce, sizeof(world->nonce), deadline) ||
		    net_send(world->star[i], world->peers,
		             (size_t)world->n_ranks * sizeof(*world->peers), deadline))
			die("rank %d is gone before the start", i);
	/* Everybody is connected: whatever kills this run from now on, no file is left of it. */
	fail_cleanup();
}

/* The port in rank 0's file, or 0 while there is none. */
static uint16_t published_port(const struct world *world)
{
	char line[64] = "", *end;
	FILE *file = fopen(world->file, "re");
	unsigned long port = 0;

	if (!file)
		return 0;
	if (fgets(line, sizeof(line), file) && !strncmp(line, "127.0.0.1:", 10)) {
		port = strtoul(line + 10, &end, 10);
		if (*end != '\n' || port > UINT16_MAX)
			port = 0;
	}
	fclose(file);
	return (uint16_t)port;
}

/* Others: find rank 0, say who we are, hear of all. An old file's port refuses: look again. */
static void report(struct world *world, uint64_t deadline)
{
	struct hello hello = { .magic = MAGIC,
	                       .rank = world->rank,
	                       .n_ranks = world->n_ranks,
	                       .peer = world->peers[world->rank] };
	int fd = -1;

	while (fd < 0) {
		uint16_t port = published_port(world);

		fd = port ? net_connect(port) : -1;
		if (fd >= 0)
			break;
		if (deadline && host_ns() > deadline)
			die("rank 0 did not come: no answer by way of %s", world->file);
		sleep_ms(POLL_MS);
	}
	world->star[0] = fd;
	if (net_send(fd, &hello, sizeof(hello), deadline) ||
	    net_recv(fd, &world->nonce, sizeof(world->nonce), deadline) ||
	    net_recv(fd, world->peers, (size_t)world->n_ranks * sizeof(*world->peers), deadline))
		die("rank 0 did not tell who is there");
}

void world_join(struct world *world, const struct options *opt)
{
	uint64_t deadline = net_deadline(opt->timeout_s);
	struct peer *me;
	uint16_t port;

	*world = (struct world){ .rank = place("RANK", "SLURM_PROCID", 0),
	                         .n_ranks = place("WORLD_SIZE", "SLURM_NTASKS", 1),
	                         .timeout_s = opt->timeout_s };
	if (world->rank >= world->n_ranks)
		die("rank %d of %d", world->rank, world->n_ranks);
	fail_set_rank(world->rank);
	world->peers = calloc((size_t)world->n_ranks, sizeof(*world->peers));
	world->star = calloc((size_t)world->n_ranks, sizeof(*world->star));
	if (!world->peers || !world->star)
		die("out of memory");
	for (int i = 0; i < world->n_ranks; i++)
		world->star[i] = -1;
	choose_dir(world, opt);
	world->listener = net_listen(&port);
	if (world->listener < 0)
		die("cannot listen: %s", strerror(-world->listener));
	me = &world->peers[world->rank];
	me->port = port;
	me->local_id = place("LOCAL_RANK", "SLURM_LOCALID", 0);
	if (getenv("SLURMD_NODENAME"))
		snprintf(me->node, sizeof(me->node), "%s", getenv("SLURMD_NODENAME"));
	else
		gethostname(me->node, sizeof(me->node) - 1);
	if (world->rank) {
		report(world, deadline);
		return;
	}
	publish(world, port);
	gather(world, deadline);
}

static void tell(struct world *world, int rank, char word)
{
	int rc = net_send(world->star[rank], &word, 1, net_deadline(world->timeout_s));

	if (rc)
		die("rank %d does not listen: %s", rank, strerror(-rc));
}

static char hear(struct world *world, int rank)
{
	char word = 0;
	int rc = net_recv(world->star[rank], &word, 1, net_deadline(world->timeout_s));

	if (rc)
		die("rank %d does not speak: %s", rank, strerror(-rc));
	return word;
}

void world_barrier(struct world *world)
{
	if (world->rank) {
		tell(world, 0, 'b');
		hear(world, 0);
		return;
	}
	for (int i = 1; i < world->n_ranks; i++)
		hear(world, i);
	for (int i = 1; i < world->n_ranks; i++)
		tell(world, i, 'b');
}

bool world_agree(struct world *world, bool go)
{
	if (world->rank)
		return hear(world, 0) == 'g';
	for (int i = 1; i < world->n_ranks; i++)
		tell(world, i, go ? 'g' : 's');
	return go;
}

void world_leave(struct world *world)
{
	for (int i = 0; i < world->n_ranks; i++)
		if (world->star[i] >= 0)
			close(world->star[i]);
	close(world->listener);
	free(world->star);
	free(world->peers);
}
