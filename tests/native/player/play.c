/* SPDX-License-Identifier: Apache-2.0 */
/* play.c - single calls. */
#include "start.h"

static const char *const phase_names[] = { "initial_sync", "compute", "final_sync" };

static bool has_event(int version, uint64_t type)
{
	if (type == PROF_KERNEL_PHASE)
		return version >= 7;
	if (type & (PROF_CE_COLL | PROF_CE_SYNC | PROF_CE_BATCH))
		return version >= 6;
	if (type & (PROF_GROUP_API | PROF_COLL_API | PROF_P2P_API | PROF_KERNEL_LAUNCH))
		return version >= 5;
	return version >= 3 || !(type & (PROF_KERNEL_CH | PROF_NET_PLUGIN));
}

static void *tell(struct player *player, const struct player_start *start)
{
	void *handle = PLAYER_LEFT_OVER;

	if (!has_event(player->version, start->type))
		return NULL;
	player->start(start, &handle);
	if (handle == PLAYER_LEFT_OVER)
		__atomic_fetch_add(&player->unwritten, 1, __ATOMIC_RELAXED);
	return handle;
}

void *play_group_api(struct player_comm *comm, int depth, bool captured)
{
	struct player_start start = { .comm = comm, .type = PROF_GROUP_API };

	start.group_api = (struct prof_group_api){ captured, depth };
	return tell(comm->player, &start);
}

void *play_coll_api(struct player_comm *comm, void *group_api, const struct player_op *op,
                    bool captured)
{
	struct player_start start = {
		.comm = comm, .type = PROF_COLL_API, .parent = group_api, .op = op
	};

	start.captured = captured;
	return tell(comm->player, &start);
}

void *play_p2p_api(struct player_comm *comm, void *group_api, const struct player_op *op,
                   bool captured)
{
	struct player_start start = {
		.comm = comm, .type = PROF_P2P_API, .parent = group_api, .op = op
	};

	start.captured = captured;
	return tell(comm->player, &start);
}

void *play_kernel_launch(struct player_comm *comm, void *group_api)
{
	struct player_start start = { .comm = comm,
	                              .type = PROF_KERNEL_LAUNCH,
	                              .parent = group_api };

	return tell(comm->player, &start);
}

void *play_group(struct player_comm *comm)
{
	return play_type(comm, PROF_GROUP, NULL);
}

static void *play_task(struct player_comm *comm, uint64_t type, void *api, void *group,
                       const struct player_op *op)
{
	struct player_start start = {
		.comm = comm, .type = type, .parent = api, .group = group, .op = op
	};

	return tell(comm->player, &start);
}

void *play_coll(struct player_comm *comm, void *api, void *group, const struct player_op *op)
{
	return play_task(comm, PROF_COLL, api, group, op);
}

void *play_p2p(struct player_comm *comm, void *api, void *group, const struct player_op *op)
{
	return play_task(comm, PROF_P2P, api, group, op);
}

void *play_kernel_ch(struct player_comm *comm, void *task, unsigned channel, uint64_t gpu_ns)
{
	struct player_start start = { .comm = comm, .type = PROF_KERNEL_CH, .parent = task };

	start.kernel_ch = (struct prof_kernel_ch){ (uint8_t)channel, gpu_ns };
	return tell(comm->player, &start);
}

void play_kernel_ch_stop(struct player_comm *comm, void *handle, uint64_t gpu_ns)
{
	if (comm->player->version >= 4)
		play_state(comm, handle, PROF_STATE_KERNEL_CH_STOP, gpu_ns);
	play_stop(comm, handle);
}

void *play_kernel_phase(struct player_comm *comm, void *kernel_ch, unsigned channel, unsigned phase,
                        uint64_t gpu_ns)
{
	struct player_start start = { .comm = comm,
	                              .type = PROF_KERNEL_PHASE,
	                              .parent = kernel_ch };

	start.kernel_phase =
	    (struct prof_kernel_phase){ (uint8_t)channel, (uint8_t)phase,
	                                phase < 3 ? phase_names[phase] : NULL, gpu_ns };
	return tell(comm->player, &start);
}

void play_kernel_phase_stop(struct player_comm *comm, void *handle, uint64_t gpu_ns)
{
	play_state(comm, handle, PROF_STATE_KERNEL_PHASE_STOP, gpu_ns);
	play_stop(comm, handle);
}

void *play_ce_coll(struct player_comm *comm, void *coll_api, const struct player_op *op)
{
	struct player_start start = {
		.comm = comm, .type = PROF_CE_COLL, .parent = coll_api, .op = op
	};

	return tell(comm->player, &start);
}

void *play_ce_sync(struct player_comm *comm, void *ce_coll, bool is_complete)
{
	struct player_start start = { .comm = comm, .type = PROF_CE_SYNC, .parent = ce_coll };

	start.ce_sync = (struct prof_ce_sync){ is_complete, comm->n_ranks };
	return tell(comm->player, &start);
}

void *play_ce_batch(struct player_comm *comm, void *ce_coll, int n_ops, size_t bytes)
{
	struct player_start start = { .comm = comm, .type = PROF_CE_BATCH, .parent = ce_coll };

	start.ce_batch = (struct prof_ce_batch){ n_ops, bytes, false };
	return tell(comm->player, &start);
}

void *play_proxy_op(struct player_comm *comm, void *task, const struct prof_proxy_op *op)
{
	struct player_start start = { .comm = comm, .type = PROF_PROXY_OP, .parent = task };

	start.proxy_op = *op;
	return tell(comm->player, &start);
}

void *play_proxy_step(struct player_comm *comm, void *proxy_op, int step)
{
	struct player_start start = { .comm = comm, .type = PROF_PROXY_STEP, .parent = proxy_op };

	start.proxy_step.step = step;
	return tell(comm->player, &start);
}

void *play_net_plugin(struct player_comm *comm, void *step, int64_t id, void *data)
{
	struct player_start start = { .comm = comm, .type = PROF_NET_PLUGIN, .parent = step };

	start.net_plugin = (struct prof_net_plugin){ id, data };
	return tell(comm->player, &start);
}

void *play_proxy_ctrl(struct player_comm *comm)
{
	return play_type(comm, PROF_PROXY_CTRL, NULL);
}

/* A task's body is asked of the operation: an unknown type has none. */
void *play_type(struct player_comm *comm, uint64_t type, void *parent)
{
	static const struct player_op empty;
	struct player_start start = { .comm = comm, .type = type, .parent = parent, .op = &empty };

	return tell(comm->player, &start);
}

void play_stop(struct player_comm *comm, void *handle)
{
	if (handle)
		comm->player->v5->stop(handle);
}

void play_state(struct player_comm *comm, void *handle, int state, uint64_t value)
{
	union prof_args args = { .timer_ns = value };
	union prof_args_old old = { .proxy_op = { (size_t)value, 0 } };

	if (!handle)
		return;
	if (comm->player->version < 4)
		comm->player->v3->record(handle, state, &old);
	else
		comm->player->v5->record(handle, state, &args);
}

void play_state_bare(struct player_comm *comm, void *handle, int state)
{
	if (handle)
		comm->player->v5->record(handle, state, NULL);
}
