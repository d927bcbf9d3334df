/* SPDX-License-Identifier: Apache-2.0 */
/* net.c - the GPU's side of connections over the network.
 *
 * A piece to send is announced in the connection's fifo: its size, in place of -1. NCCL sends it
 * when the tail is beyond it, and writes -1 again. It receives when the head is far enough. We put
 * tail and head so far that no operation gets there, and fill the fifo as soon as it is empty.
 * The protocol must be SIMPLE: the others want flags in the data. */
#include "net.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "layout.h"

#define COMMS 32
#define FIFO 8
#define PIECE_BYTES 64
#define FAR (1ull << 60)
#define PAUSE_US 200

static struct {
	pthread_t thread;
	volatile bool on;
	unsigned fifo_bytes;
	const struct kernel_comm *volatile comms[COMMS];
	uint64_t filled;
} net;

void net_serve(const struct kernel_comm *comm)
{
	for (unsigned i = 0; i < COMMS && net.on; i++) {
		if (net.comms[i] == comm)
			return;
		if (!net.comms[i]) {
			net.comms[i] = comm;
			return;
		}
	}
}

/* In the fifo's entries the size is the word before the last. */
static volatile int64_t *size_at(const struct connection *conn, unsigned slot)
{
	char *entry = (char *)conn->fifo + (size_t)slot * net.fifo_bytes;

	return (volatile int64_t *)(void *)(entry + net.fifo_bytes - 16);
}

static void serve_send(const struct connection *conn)
{
	*conn->tail = FAR;
	for (unsigned slot = 0; slot < FIFO; slot++)
		if (*size_at(conn, slot) == -1) {
			*size_at(conn, slot) = PIECE_BYTES;
			net.filled++;
		}
}

static void serve_comm(const struct kernel_comm *comm)
{
	for (unsigned c = 0; c < CHANNELS; c++)
		for (int rank = 0; comm->channels[c].peers && rank < comm->n_ranks; rank++) {
			const struct channel_peer *peer = comm->channels[c].peers[rank];

			for (unsigned i = 0; peer && i < 2; i++) {
				if (peer->send[i].fifo && peer->send[i].tail)
					serve_send(&peer->send[i]);
				if (peer->receive[i].fifo && peer->receive[i].head)
					*peer->receive[i].head = FAR;
			}
		}
}

static void *serve(void *unused)
{
	(void)unused;
	while (net.on) {
		for (unsigned i = 0; i < COMMS && net.comms[i]; i++)
			serve_comm(net.comms[i]);
		usleep(PAUSE_US);
	}
	return NULL;
}

void played_net_begin(unsigned fifo_bytes)
{
	net.fifo_bytes = fifo_bytes;
	net.on = true;
	pthread_create(&net.thread, NULL, serve, NULL);
}

/* Pieces that are filled and not sent are still there. */
static uint64_t left_of(const struct kernel_comm *comm)
{
	uint64_t left = 0;

	for (unsigned c = 0; c < CHANNELS; c++)
		for (int rank = 0; comm->channels[c].peers && rank < comm->n_ranks; rank++) {
			const struct channel_peer *peer = comm->channels[c].peers[rank];

			for (unsigned i = 0; peer && i < 2; i++)
				for (unsigned slot = 0; peer->send[i].fifo && slot < FIFO; slot++)
					left += *size_at(&peer->send[i], slot) != -1;
		}
	return left;
}

uint64_t played_net_end(void)
{
	uint64_t sent;

	net.on = false;
	pthread_join(net.thread, NULL);
	sent = net.filled;
	for (unsigned i = 0; i < COMMS && net.comms[i]; i++)
		sent -= left_of(net.comms[i]);
	return sent;
}
