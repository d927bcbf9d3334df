/* SPDX-License-Identifier: Apache-2.0 */
#include "comm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fail.h"
#include "gpuclock.h"
#include "net.h"

#define MAGIC 0x4e535432u

struct hello {
	uint32_t magic;
	uint32_t kind;
	int32_t from; /* rank of all */
	uint64_t nonce;
};

/* Number of different nodes of ranks 0 to `end` - 1. */
static int nodes_before(const struct world *world, int end)
{
	int nodes = 0;

	for (int i = 0; i < end; i++) {
		bool seen = false;

		for (int j = 0; j < i && !seen; j++)
			seen = !strcmp(world->peers[i].node, world->peers[j].node);
		nodes += !seen;
	}
	return nodes;
}

static int node_index(const struct world *world, int rank)
{
	int first = 0;

	while (strcmp(world->peers[first].node, world->peers[rank].node) != 0)
		first++;
	return nodes_before(world, first);
}

/* Which of the communicators of that kind a rank is in. */
static int index_of(const struct world *world, enum comm_kind kind, int rank)
{
	switch (kind) {
	case COMM_NODE:
		return node_index(world, rank);
	case COMM_CROSS:
		return world->peers[rank].local_id;
	case COMM_HALF:
		return 2 * node_index(world, rank) >= nodes_before(world, world->n_ranks);
	case COMM_PARITY:
		return node_index(world, rank) % 2;
	default:
		return 0;
	}
}

static bool is_member(const struct world *world, enum comm_kind kind, int rank)
{
	return index_of(world, kind, rank) == index_of(world, kind, world->rank);
}

static int count_nodes(const struct world *world, enum comm_kind kind)
{
	int nodes = 0;

	for (int i = 0; i < world->n_ranks; i++) {
		bool seen = !is_member(world, kind, i);

		for (int j = 0; j < i && !seen; j++)
			seen = is_member(world, kind, j) &&
			       !strcmp(world->peers[i].node, world->peers[j].node);
		nodes += !seen;
	}
	return nodes;
}

static uint64_t hash(uint64_t start, const void *data, size_t size)
{
	const unsigned char *bytes = data;

	for (size_t i = 0; i < size; i++)
		start = (start ^ bytes[i]) * UINT64_C(1099511628211); /* FNV-1a */
	return start;
}

void comm_describe(struct comm *comm, enum comm_kind kind, const struct world *world)
{
	*comm = (struct comm){ .kind = kind, .global_rank = world->rank };
	for (int i = 0; i < world->n_ranks; i++) {
		if (!is_member(world, kind, i))
			continue;
		if (i < world->rank)
			comm->rank++;
		comm->n_ranks++;
	}
	comm->n_nodes = count_nodes(world, kind);
	if (kind == COMM_WORLD)
		snprintf(comm->name, sizeof(comm->name), "standin_world");
	else
		snprintf(comm->name, sizeof(comm->name), "standin_%s%d", comm_kind_name[kind],
		         index_of(world, kind, world->rank));
	comm->id = hash(UINT64_C(14695981039346656037), &world->nonce, sizeof(world->nonce));
	comm->id = hash(comm->id, comm->name, strlen(comm->name));
	comm->next = (comm->rank + 1) % comm->n_ranks;
	comm->prev = (comm->rank + comm->n_ranks - 1) % comm->n_ranks;
	comm->next_global = comm->prev_global = world->rank;
	do
		comm->next_global = (comm->next_global + 1) % world->n_ranks;
	while (!is_member(world, kind, comm->next_global));
	do
		comm->prev_global = (comm->prev_global + world->n_ranks - 1) % world->n_ranks;
	while (!is_member(world, kind, comm->prev_global));
	comm->link = (struct link){ .out_fd = -1, .in_fd = -1 };
}

static void connect_next(struct comm *comm, const struct world *world)
{
	struct hello hello = {
		.magic = MAGIC, .kind = comm->kind, .from = world->rank, .nonce = world->nonce
	};
	int fd = net_connect((uint16_t)world->peers[comm->next_global].port);

	if (fd < 0)
		die("%s: no connection to rank %d: %s", comm->name, comm->next_global,
		    strerror(-fd));
	if (net_send(fd, &hello, sizeof(hello), net_deadline(world->timeout_s)))
		die("%s: rank %d hangs up", comm->name, comm->next_global);
	comm->link.out_fd = fd;
}

/* Takes one connection; false when it is of no communicator of ours. */
static bool accept_prev(struct comm *comms, int n, const struct world *world)
{
	uint64_t deadline = net_deadline(world->timeout_s);
	struct hello hello;
	int fd = net_accept(world->listener, deadline);

	if (fd < 0)
		die("a neighbour does not connect: %s", strerror(-fd));
	if (!net_recv(fd, &hello, sizeof(hello), deadline) && hello.magic == MAGIC &&
	    hello.nonce == world->nonce)
		for (int i = 0; i < n; i++) {
			struct comm *comm = &comms[i];

			if (comm->kind != hello.kind || comm->prev_global != hello.from ||
			    comm->n_ranks < 2 || comm->link.in_fd >= 0)
				continue;
			comm->link.in_fd = fd;
			return true;
		}
	close(fd);
	return false;
}

#define CUT_NS_PER_BYTE 1e12 /* a byte in 17 minutes */

static void throttle(struct comm *comm, const struct world *world, const struct throttle *slow)
{
	uint64_t now_ns = host_ns();

	if (!throttle_is_of(slow, world->peers[world->rank].node,
	                    world->peers[comm->next_global].node))
		return;
	comm->link.slow_ns_per_byte =
	    slow->rate_mbs ? 1e3 / (double)slow->rate_mbs : CUT_NS_PER_BYTE;
	comm->link.slow_from_ns = now_ns + slow->from_s * NS_PER_S;
	comm->link.slow_until_ns = slow->until_s ? now_ns + slow->until_s * NS_PER_S : UINT64_MAX;
}

static void check_nodes(const struct world *world, const struct throttle *slow)
{
	for (int i = 0; i < 2; i++) {
		bool found = !*slow->node[i];

		for (int rank = 0; rank < world->n_ranks && !found; rank++)
			found = !strcmp(slow->node[i], world->peers[rank].node);
		if (!found)
			die("--throttle: no rank is on a node '%s'", slow->node[i]);
	}
}

void comm_connect(struct comm *comms, int n, struct world *world, const struct options *opt)
{
	int expected = 0;

	check_nodes(world, &opt->throttle);
	for (int i = 0; i < n; i++) {
		comms[i].link.ns_per_byte = 1e3 / (double)opt->rate_mbs;
		comms[i].link.timeout_s = opt->timeout_s;
		throttle(&comms[i], world, &opt->throttle);
		if (comms[i].n_ranks < 2)
			continue;
		/* The others listen already, so this does not wait for them to accept. */
		connect_next(&comms[i], world);
		expected++;
	}
	while (expected)
		expected -= accept_prev(comms, n, world);
}

void comm_disconnect(struct comm *comm)
{
	if (comm->n_ranks < 2)
		return;
	close(comm->link.out_fd);
	close(comm->link.in_fd);
}
