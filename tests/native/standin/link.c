/* SPDX-License-Identifier: Apache-2.0 */
/* DESIGN: a token bucket, written as the time at which the link is free again. A piece leaves
 * when its last byte would have left a link of that rate, so an operation takes bytes / rate
 * and the processor sleeps meanwhile. The schedule is absolute: a thread that wakes late sends
 * its next piece earlier, and 14 steps of a ring do not add up 14 late wake-ups. */
#include "link.h"

#include <errno.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "gpuclock.h"
#include "net.h"

#define PIECE_BYTES (64u << 10)
#define CATCH_UP_NS (5 * NS_PER_MS) /* depth of the bucket: a later start is a new schedule */

struct transfer {
	const char *out;
	char *in;
	size_t out_left, in_left;
	size_t piece_left; /* of the piece that is leaving */
	uint64_t due_ns;   /* when it may */
};

int link_meet(struct link *link)
{
	uint64_t deadline = net_deadline(link->timeout_s);
	char credit = 'c';
	int rc = net_send(link->in_fd, &credit, 1, deadline);

	if (!rc)
		rc = net_recv(link->out_fd, &credit, 1, deadline);
	link->free_ns = host_ns();
	return rc;
}

static double pace(const struct link *link, uint64_t now_ns)
{
	bool slow = now_ns >= link->slow_from_ns && now_ns < link->slow_until_ns;

	return slow ? link->slow_ns_per_byte : link->ns_per_byte;
}

static void next_piece(struct link *link, struct transfer *now, uint64_t now_ns)
{
	now->piece_left = now->out_left < PIECE_BYTES ? now->out_left : PIECE_BYTES;
	if (link->free_ns + CATCH_UP_NS < now_ns)
		link->free_ns = now_ns;
	link->free_ns += (uint64_t)((double)now->piece_left * pace(link, now_ns));
	now->due_ns = link->free_ns;
}

/* Sends what is due. Positive: something left; 0: not due, or the socket is full; or -errno. */
static int push(struct link *link, struct transfer *now, bool *full)
{
	uint64_t now_ns = host_ns();
	ssize_t n;

	*full = false;
	if (now->out_left && !now->piece_left)
		next_piece(link, now, now_ns);
	if (!now->out_left || now_ns < now->due_ns)
		return 0;
	n = send(link->out_fd, now->out, now->piece_left, MSG_DONTWAIT | MSG_NOSIGNAL);
	if (n < 0 && errno == EINTR)
		return 1;
	if (n < 0 && errno != EAGAIN)
		return errno == EPIPE ? -ECONNRESET : -errno;
	if (n < 0) {
		*full = true;
		return 0;
	}
	now->out += n;
	now->out_left -= (size_t)n;
	now->piece_left -= (size_t)n;
	return 1;
}

/* Positive: something came; 0: nothing there; or -errno. */
static int pull(struct link *link, struct transfer *now)
{
	ssize_t n;

	if (!now->in_left)
		return 0;
	n = recv(link->in_fd, now->in, now->in_left, MSG_DONTWAIT);
	if (n == 0)
		return -ECONNRESET;
	if (n < 0)
		return errno == EAGAIN ? 0 : errno == EINTR ? 1 : -errno;
	now->in += n;
	now->in_left -= (size_t)n;
	return 1;
}

int link_exchange(struct link *link, const void *out, size_t out_bytes, void *in, size_t in_bytes)
{
	struct transfer now = { .out = out, .in = in, .out_left = out_bytes, .in_left = in_bytes };
	uint64_t deadline = net_deadline(link->timeout_s);

	while (now.out_left || now.in_left) {
		struct pollfd fds[2] = { { .fd = link->in_fd }, { .fd = link->out_fd } };
		bool full;
		int sent = push(link, &now, &full);
		int got = sent < 0 ? sent : pull(link, &now);
		int rc;

		if (sent < 0 || got < 0)
			return sent < 0 ? sent : got;
		if (sent || got) {
			deadline = net_deadline(link->timeout_s);
			continue;
		}
		fds[0].events = now.in_left ? POLLIN : 0;
		fds[1].events = full ? POLLOUT : 0;
		/* A descriptor without events still reports a hang-up, for ever: leave it out. */
		for (int i = 0; i < 2; i++)
			if (!fds[i].events)
				fds[i].fd = -1;
		rc = net_poll(fds, 2, now.out_left && !full ? now.due_ns : 0, deadline);
		if (rc)
			return rc;
	}
	return 0;
}
