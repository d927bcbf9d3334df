/* SPDX-License-Identifier: Apache-2.0 */
#include "net/queues.h"

#define relaxed memory_order_relaxed

#define LENGTH_MAX UINT32_MAX /* of a work request with one buffer */
#define NUMBER_MAX ((1u << BOX_QUEUE_NUMBER_BITS) - 1)
#define FIRST_PAGE 4096u

static void refuse(struct box_net *entry)
{
	atomic_fetch_add_explicit(&entry->refused, 1, relaxed);
}

/* Whether a structure of NCCL's may be there. */
static bool may_be_read(const void *data)
{
	uintptr_t at = (uintptr_t)data;

	return at >= FIRST_PAGE && at % _Alignof(struct abi_net_ib) == 0;
}

static bool is_plausible(const struct abi_net_ib *told, bool is_send)
{
	const struct abi_ib_qp *qp = &told->qp;

	return told->type == ABI_NET_IB_QP && qp->device >= 0 &&
	       (unsigned)qp->device < BOX_QUEUE_DEVICES && qp->number > 0 &&
	       (unsigned)qp->number <= NUMBER_MAX && (!is_send || qp->length <= LENGTH_MAX);
}

/* The place of a queue pair, a new one if need be; NULL when all are in use. */
static struct box_net_queue *find_queue(struct box_net *entry, uint32_t pair)
{
	for (unsigned i = 0; i < BOX_NET_QUEUES; i++) {
		struct box_net_queue *queue = &entry->queues[i];
		uint32_t found = atomic_load_explicit(&queue->pair, relaxed);

		if (!found && atomic_compare_exchange_strong_explicit(&queue->pair, &found, pair,
		                                                      relaxed, relaxed))
			return queue;
		if (found == pair)
			return queue;
	}
	return NULL;
}

static void add_request(struct box_net *entry, const struct abi_ib_qp *qp)
{
	uint32_t pair = (uint32_t)qp->device << BOX_QUEUE_NUMBER_BITS | (uint32_t)qp->number;
	uint64_t bytes = entry->is_send ? qp->length : 0;
	struct box_net_queue *queue = find_queue(entry, pair);

	atomic_fetch_add_explicit(queue ? &queue->requests : &entry->other_requests, 1, relaxed);
	if (bytes)
		atomic_fetch_add_explicit(queue ? &queue->bytes : &entry->other_bytes, bytes,
		                          relaxed);
}

void net_plugin_start(struct net *net, void *step, const struct abi_net_plugin *told)
{
	struct net_op *op = net_op_of(net, (uintptr_t)step, NET_HANDLE_STEP);

	if (!op)
		return;
	struct box_net *entry = net_entry(net, op);
	const struct abi_net_ib *ib = told->data;

	if (told->id == ABI_NET_SOCKET_V1)
		atomic_fetch_add_explicit(&entry->socket_requests, 1, relaxed);
	else if (told->id != ABI_NET_IB_V1 || !may_be_read(ib) || !is_plausible(ib, entry->is_send))
		refuse(entry);
	else
		add_request(entry, &ib->qp);
}
