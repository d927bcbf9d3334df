/* SPDX-License-Identifier: Apache-2.0 */
/* peers.h - Sends and Recvs by peer. No lock. */
#ifndef NCCL_INSPECTOR_PEERS_H
#define NCCL_INSPECTOR_PEERS_H

#include "box.h"

#define PEERS_NONE UINT32_MAX

struct finished;

/* Index in box->peers, a new entry if need be; PEERS_NONE when its places are taken. */
uint32_t peers_find(struct box *box, unsigned comm, unsigned func, int peer);

/* Adds one operation. The caller has the communicator to itself (box_comm.busy). */
void peers_account(struct box *box, uint32_t entry, const struct finished *op);

/* Frees the entries of a communicator, and sets to 0 what `calls` counts for them; with the communicator to itself. */
void peers_forget(struct box *box, unsigned comm, _Atomic uint32_t calls[BOX_PEERS]);

#endif
