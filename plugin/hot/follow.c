/* SPDX-License-Identifier: Apache-2.0 */
#include "hot/follow.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "hot/clockmix.h"
#include "hot/late.h"
#include "hot/skew.h"
#include "hot/slots.h"
#include "nccl/strings.h"

#define relaxed memory_order_relaxed

static bool has_popcnt(void)
{
#if defined(__x86_64__)
	unsigned eax, ebx, ecx = 0, edx;

	return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && ecx & bit_POPCNT;
#else
	return false;
#endif
}

void track_init(struct track *track, struct box *box, uint64_t ns_per_tick_q32,
                const struct track_options *options)
{
	if (track->box) /* a process's own is zero, and takes no memory until it is touched */
		memset(track, 0, sizeof(*track));
	track->box = box;
	track->ops = box->ops;
	atomic_store(&track->fast_ops, box->ops);
	atomic_store(&track->sweep_tick, clock_ticks());
	track->ns_per_tick_q32 = ns_per_tick_q32;
	track->has_popcnt = has_popcnt();
	track->options = *options;
	track->clocks_ticks =
	    (uint64_t)(((unsigned __int128)TRACK_CLOCKS_NS << 32) / ns_per_tick_q32);
	for (unsigned slot = 0; slot < BOX_OPS; slot++)
		atomic_store_explicit(&box->ops[slot].handle, handle_of_use(slot, BOX_OP_USED),
		                      relaxed);
	for (unsigned ring = 0; ring < TRACK_RINGS; ring++)
		atomic_store_explicit(&track->rings[ring].cursor, ring * SLOTS_RING, relaxed);
	for (unsigned comm = 0; comm < BOX_LIVE_COMMS; comm++)
		atomic_store_explicit(&track->comms[comm].shared_cursor, comm * 2654435761u,
		                      relaxed);
	ends_init(&track->ends);
	strings_forget();
	atomic_store(&track->active, true);
	atomic_store(&track->follows, true);
}

void track_silence(struct track *track)
{
	for (unsigned comm = 0; comm < BOX_LIVE_COMMS; comm++)
		track_end_comm(track, comm);
	atomic_store(&track->fast_ops, all_free_ops);
	atomic_store(&track->follows, false);
	atomic_store(&track->active, false);
}

void track_follow(struct track *track, bool follows)
{
	if (follows && !atomic_load_explicit(&track->follows, relaxed))
		clockmix_unasked(track);
	atomic_store(&track->follows, follows);
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++)
		track_follow_comm(track, i);
}

void track_trace(struct track *track, struct trace_op *traces)
{
	track->traces = traces;
	atomic_store(&track->fast_ops, traces ? all_free_ops : track->ops);
}

void track_new_comm(struct track *track, unsigned comm, void *context)
{
	struct track_comm *app = &track->comms[comm];

	track_forget_known(app);
	atomic_store_explicit(&app->seen_funcs, 0, relaxed);
	atomic_store_explicit(&app->index, 0, relaxed);
	atomic_store_explicit(&app->has_p2p, false, relaxed);
	atomic_store_explicit(&app->symmetric, 0, relaxed);
	groups_new_comm(&track->groups, comm);
	skew_new_comm(track, comm);
	clockmix_new_comm(track, comm);
	late_new_comm(track, comm);
	for (unsigned i = 0; i < TRACK_MEMOS; i++)
		atomic_store_explicit(&app->memos[i].func, NULL, relaxed);
	atomic_store_explicit(&app->context, track_is_fast(track) ? context : NULL, relaxed);
}
