/* SPDX-License-Identifier: Apache-2.0 */
/* hot/send.h - Sends and Recvs of v4 and later: the quick way for one that is alone in its group
 * and like an earlier one, which pipelines send all the time. */
#ifndef NCCL_INSPECTOR_HOT_SEND_H
#define NCCL_INSPECTOR_HOT_SEND_H

#include "hot/state.h"
#include "nccl/abi.h"

/* A Send or Recv. `call` and `plan`: the handles of its call and of its kernel's plan, NULL for
 * none. Writes its handle (NULL: nothing is to be followed) and gives 0. Takes any context and any
 * handle. By the threads that call NCCL. */
TRACK_HOT int track_p2p(struct track *track, void *context, void *call, void *plan,
                        const struct abi_p2p *p2p, void **handle);

#endif
