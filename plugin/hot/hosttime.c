/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/hosttime.h"

#include "base/clock.h"
#include "hot/handle.h"
#include "nccl/abi.h"

#define relaxed memory_order_relaxed

static bool is_on(const struct hosttime *host)
{
	return host->track && host->track->options.host_time;
}

int hosttime_events(const struct hosttime *host, unsigned api)
{
	return is_on(host) && api >= 5 ? ABI_KERNEL_LAUNCH : 0;
}

/* Threads of several communicators add to the same sums. */
static void add(const struct hosttime *host, _Atomic uint64_t *began, struct box_host_time *sum)
{
	uint64_t tick = atomic_exchange_explicit(began, 0, relaxed), now = clock_ticks();

	if (!tick || now < tick || !atomic_load_explicit(&host->track->active, relaxed))
		return;
	uint64_t ns = clock_ticks_to_ns(now - tick, host->track->ns_per_tick_q32);
	uint64_t longest = atomic_load_explicit(&sum->max_ns, relaxed);

	atomic_fetch_add_explicit(&sum->ns, ns, relaxed);
	while (ns > longest &&
	       !atomic_compare_exchange_weak_explicit(&sum->max_ns, &longest, ns, relaxed, relaxed))
		;
	atomic_fetch_add_explicit(&sum->count, 1, memory_order_release);
}

static unsigned comm_of(const void *handle, unsigned kind)
{
	uint64_t bits = handle_bits(handle);

	return handle_kind(bits) == kind && handle_comm(bits) < BOX_LIVE_COMMS ? handle_comm(bits)
	                                                                       : UINT32_MAX;
}

void hosttime_call_begins(struct hosttime *host, const void *group)
{
	unsigned comm = comm_of(group, HANDLE_GROUP);

	if (is_on(host) && comm != UINT32_MAX)
		atomic_store_explicit(&host->call_tick[comm], clock_ticks(), relaxed);
}

void hosttime_call_over(struct hosttime *host, const void *group)
{
	unsigned comm = comm_of(group, HANDLE_GROUP);

	if (is_on(host) && comm != UINT32_MAX)
		add(host, &host->call_tick[comm], &host->track->box->header->calls);
}

void *hosttime_launch_begins(struct hosttime *host, const void *context)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);

	if (!is_on(host) || comm == UINT32_MAX)
		return NULL;
	atomic_store_explicit(&host->launch_tick[comm], clock_ticks(), relaxed);
	return handle_of((uint64_t)comm << HANDLE_COMM_SHIFT | HANDLE_LAUNCH);
}

void hosttime_launch_over(struct hosttime *host, const void *launch)
{
	unsigned comm = comm_of(launch, HANDLE_LAUNCH);

	if (is_on(host) && comm != UINT32_MAX)
		add(host, &host->launch_tick[comm], &host->track->box->header->launches);
}
