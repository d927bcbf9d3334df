/* SPDX-License-Identifier: Apache-2.0 */
/* link.h - a rank's place in a ring: data go out to the next rank, paced, and come in from the
 * previous one. Used by the GPU thread only. */
#ifndef STANDIN_LINK_H
#define STANDIN_LINK_H

#include <stddef.h>
#include <stdint.h>

struct link {
	int out_fd, in_fd;
	double ns_per_byte;
	double slow_ns_per_byte; /* from slow_from_ns to slow_until_ns, by host_ns() */
	uint64_t slow_from_ns, slow_until_ns;
	uint64_t free_ns; /* when the bytes sent so far have left, by the pace */
	uint64_t timeout_s;
};

/* Lets the previous rank send, and waits until the next one is there. 0 or -errno (net.h). */
int link_meet(struct link *link);

/* Sends and receives at the same time; returns when both are done. The time limit is for a
 * wait in which nothing moves. 0 or -errno. */
int link_exchange(struct link *link, const void *out, size_t out_bytes, void *in, size_t in_bytes);

#endif
