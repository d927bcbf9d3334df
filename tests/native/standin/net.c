/* SPDX-License-Identifier: Apache-2.0 */
#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpuclock.h"

uint64_t net_deadline(uint64_t timeout_s)
{
	return timeout_s ? host_ns() + timeout_s * NS_PER_S : 0;
}

int net_poll(struct pollfd *fds, nfds_t n, uint64_t until, uint64_t deadline)
{
	uint64_t now = host_ns(),
		 limit = until && (!deadline || until < deadline) ? until : deadline;
	uint64_t left = limit > now ? limit - now : 0;
	struct timespec wait = { .tv_sec = (time_t)(left / NS_PER_S),
	                         .tv_nsec = (long)(left % NS_PER_S) };

	if (deadline && now >= deadline)
		return -ETIMEDOUT;
	if (ppoll(fds, n, limit ? &wait : NULL, NULL) < 0 && errno != EINTR)
		return -errno;
	return 0;
}

static int wait_one(int fd, short events, uint64_t deadline)
{
	struct pollfd one = { .fd = fd, .events = events };

	return net_poll(&one, 1, 0, deadline);
}

int net_listen(uint16_t *port)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	socklen_t size = sizeof(here);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error;

	if (fd < 0)
		return -errno;
	if (bind(fd, (struct sockaddr *)&here, size) || listen(fd, SOMAXCONN) ||
	    getsockname(fd, (struct sockaddr *)&here, &size)) {
		error = errno;
		close(fd);
		return -error;
	}
	*port = ntohs(here.sin_port);
	return fd;
}

static void tune(int fd)
{
	int on = 1, buffer_bytes = 128 << 10;

	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	/* Small: what a sender can push into a socket whose reader is late is not a transfer. */
	setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &buffer_bytes, sizeof(buffer_bytes));
}

int net_accept(int listener, uint64_t deadline)
{
	for (;;) {
		int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC), rc;

		if (fd >= 0) {
			tune(fd);
			return fd;
		}
		if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED)
			return -errno;
		rc = wait_one(listener, POLLIN, deadline);
		if (rc)
			return rc;
	}
}

int net_connect(uint16_t port)
{
	struct sockaddr_in there = { .sin_family = AF_INET,
	                             .sin_port = htons(port),
	                             .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), error;

	if (fd < 0)
		return -errno;
	if (connect(fd, (struct sockaddr *)&there, sizeof(there))) {
		error = errno;
		close(fd);
		return -error;
	}
	tune(fd);
	return fd;
}

static bool again(ssize_t done)
{
	return done < 0 && (errno == EAGAIN || errno == EINTR);
}

int net_send(int fd, const void *data, size_t size, uint64_t deadline)
{
	for (size_t sent = 0; sent < size;) {
		ssize_t n =
		    send(fd, (const char *)data + sent, size - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
		int rc;

		if (n >= 0) {
			sent += (size_t)n;
			continue;
		}
		if (!again(n))
			return errno == EPIPE ? -ECONNRESET : -errno;
		rc = wait_one(fd, POLLOUT, deadline);
		if (rc)
			return rc;
	}
	return 0;
}

int net_recv(int fd, void *data, size_t size, uint64_t deadline)
{
	for (size_t got = 0; got < size;) {
		ssize_t n = recv(fd, (char *)data + got, size - got, MSG_DONTWAIT);
		int rc;

		if (n > 0) {
			got += (size_t)n;
			continue;
		}
		if (!again(n))
			return n ? -errno : -ECONNRESET;
		rc = wait_one(fd, POLLIN, deadline);
		if (rc)
			return rc;
	}
	return 0;
}
