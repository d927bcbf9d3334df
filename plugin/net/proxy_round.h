/* SPDX-License-Identifier: Apache-2.0 */
/* net/proxy_round.h - what the beat does for network detail once a second. */
#ifndef NCCL_INSPECTOR_NET_PROXY_ROUND_H
#define NCCL_INSPECTOR_NET_PROXY_ROUND_H

#include "net/proxy.h"

/* Adds what is waited for just now, gives up what will never end, and with CONFIG_NET_AUTO decides
 * whether detail is taken; and how many operations are followed until the next round: of
 * NET_OPS_A_SECOND a `fewer`-th (0: no limit), which the budget says. Returns whether net_events
 * has changed. By the beat, under the inspector's lock. */
bool net_round(struct net *net, uint64_t now_tick, uint32_t fewer);

#endif
