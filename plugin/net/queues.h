/* SPDX-License-Identifier: Apache-2.0 */
/* net/queues.h - what NCCL's network transports tell of a step: the queue pairs of InfiniBand.
 *
 * A library that calls itself NCCL may tell anything. The payload is read only if the id is one
 * that we know, and no number of it is used as an index. Calls for one entry may come from several
 * threads: those of the socket transport.
 */
#ifndef NCCL_INSPECTOR_NET_QUEUES_H
#define NCCL_INSPECTOR_NET_QUEUES_H

#include "net/proxy.h"
#include "nccl/abi.h"

/* A network plugin has posted a request of a step; `step`: any handle. There is no handle for the
 * request: nothing is to be learned from its end. */
void net_plugin_start(struct net *net, void *step, const struct abi_net_plugin *told);

#endif
