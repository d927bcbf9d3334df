/* SPDX-License-Identifier: Apache-2.0 */
/* net.h - TCP on loopback, every wait with a limit. A deadline is a time of host_ns(); 0: none.
 * Functions that return int give a descriptor or 0, or -errno; a peer that is gone is
 * -ECONNRESET and a deadline that passed is -ETIMEDOUT. */
#ifndef STANDIN_NET_H
#define STANDIN_NET_H

#include <poll.h>
#include <stddef.h>
#include <stdint.h>

uint64_t net_deadline(uint64_t timeout_s);

/* Waits until one of the descriptors is ready, at most until `until` (0: no such limit). */
int net_poll(struct pollfd *fds, nfds_t n, uint64_t until, uint64_t deadline);

int net_listen(uint16_t *port);
int net_accept(int listener, uint64_t deadline);
int net_connect(uint16_t port);
int net_send(int fd, const void *data, size_t size, uint64_t deadline);
int net_recv(int fd, void *data, size_t size, uint64_t deadline);

#endif
