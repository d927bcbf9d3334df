/* SPDX-License-Identifier: Apache-2.0 */
#include "expo_prom.h"

#include <time.h>

#include "bandwidth.h"
#include "clock.h"
#include "log2.h"
#include "round.h"

#define relaxed memory_order_relaxed
#define SCHEMA 1

enum metric {
#define METRIC(id, name, type, help) id,
#include "metrics_table.h"
#undef METRIC
	METRICS,
};

static const struct {
	const char *name, *type, *help;
} metrics[METRICS] = {
#define METRIC(id, name, type, help) [id] = { name, type, help },
#include "metrics_table.h"
#undef METRIC
};

static const char *const drop_names[BOX_DROPS] = {
	[BOX_DROP_NO_SLOT] = "no_slot",   [BOX_DROP_NO_COMM] = "no_communicator",
	[BOX_DROP_NO_KEY] = "no_key",     [BOX_DROP_EXPIRED] = "expired",
	[BOX_DROP_IMPLAUSIBLE] = "implausible", [BOX_DROP_STALE] = "stale",
	[BOX_DROP_NO_PEER] = "no_peer",   [BOX_DROP_NO_GROUP] = "no_group",
	[BOX_DROP_JSON] = "json",
};

static void add_job_labels(struct expo *expo, unsigned gpu, struct text *text)
{
	text_add_label(text, "{cluster", expo->config->cluster);
	text_add_label(text, ",slurm_job_id", expo->config->job);
	text_add_label(text, ",node", expo->config->node);
	text_add_label(text, ",gpu", expo->box->header->gpu[gpu].label);
}

static void add_key_labels(struct expo *expo, const struct box_key *key, struct text *text)
{
	const struct box_comm *comm = &expo->box->comms[key->comm];
	char size[24];

	bandwidth_size_label(key->size_class, size, sizeof(size));
	text_add(text, "{version=\"v%u.%u\"", expo->api, SCHEMA);
	text_add_label(text, ",cluster", expo->config->cluster);
	text_add_label(text, ",slurm_job_id", expo->config->job);
	text_add_label(text, ",slurm_nodelist", expo->config->nodelist);
	text_add_label(text, ",node", expo->config->node);
	text_add_label(text, ",gpu", expo->box->header->gpu[comm->gpu].label);
	text_add(text, ",rank=\"%d\",comm=\"0x%llx\"", comm->rank, (unsigned long long)comm->id);
	text_add_label(text, ",comm_name", comm->name[0] ? comm->name : "unknown");
	text_add(text, ",n_nodes=\"%d\",nranks=\"%d\"", comm->nnodes, comm->nranks);
	if (box_func_is_p2p(key->func))
		text_add(text, ",p2p_operation=\"%s\",message_size=\"%s\"} ", box_func_name(key->func), size);
	else
		text_add(text, ",collective=\"%s\",message_size=\"%s\",algo_proto=\"%s_%s\"} ",
			 box_func_name(key->func), size, box_algo_name(key->algo),
			 box_proto_name(key->proto));
}

/* False where the metric has no value: a mean of nothing is not 0. */
static bool key_value(const struct expo *expo, unsigned i, enum metric metric, double *value)
{
	const struct box_key *key = &expo->box->keys[i];
	const struct expo_sum *now = &expo->now[i], *before = &expo->before[i];
	double ops = (double)(now->ops - before->ops);
	double factor = bandwidth_bus_factor(key->func, expo->box->comms[key->comm].nranks);

	switch (metric) {
	case METRIC_NCCL_BUS_BANDWIDTH_GBS:
	case METRIC_NCCL_P2P_BUS_BANDWIDTH_GBS:
		if (ops <= 0 || factor <= 0)
			return false;
		*value = round_binary(factor * round_exp2((double)(now->log2_rate_q20 - before->log2_rate_q20) /
							  LOG2_ONE / ops), 9);
		return true;
	case METRIC_NCCL_COLLECTIVE_EXEC_TIME_MICROSECONDS:
	case METRIC_NCCL_P2P_EXEC_TIME_MICROSECONDS:
		*value = ops > 0 ? round_binary((double)(now->busy_ns - before->busy_ns) / ops / 1e3, 11) : 0;
		return ops > 0;
	case METRIC_NCCL_COLLECTIVE_OPERATIONS_TOTAL:
	case METRIC_NCCL_P2P_OPERATIONS_TOTAL:
		*value = (double)now->ops;
		return true;
	case METRIC_NCCL_COLLECTIVE_BYTES_TOTAL:
	case METRIC_NCCL_P2P_BYTES_TOTAL:
		*value = (double)now->bytes;
		return true;
	default:
		*value = round_seconds(now->busy_ns);
		return true;
	}
}

static void write_family_head(enum metric metric, bool *begun, struct text *text)
{
	if (!*begun)
		text_add(text, "# HELP %s %s\n# TYPE %s %s\n", metrics[metric].name, metrics[metric].help,
			 metrics[metric].name, metrics[metric].type);
	*begun = true;
}

static void write_key_family(struct expo *expo, enum metric metric, bool p2p, struct text *text)
{
	bool begun = false;
	double value;

	for (unsigned i = 0; i < BOX_KEYS; i++) {
		if (!expo->shown_key[i] || box_func_is_p2p(expo->box->keys[i].func) != p2p ||
		    !key_value(expo, i, metric, &value))
			continue;
		write_family_head(metric, &begun, text);
		text_add(text, "%s", metrics[metric].name);
		add_key_labels(expo, &expo->box->keys[i], text);
		text_add(text, "%.17g\n", value);
	}
}

static double comm_value(const struct expo *expo, unsigned i, enum metric metric)
{
	const struct box_comm *comm = &expo->box->comms[i];
	const struct box_header *header = expo->box->header;
	uint64_t beat_tick = atomic_load_explicit(&header->beat_tick, relaxed);
	uint64_t tick = atomic_load_explicit(&comm->last_progress_tick, relaxed);
	double behind_s;

	switch (metric) {
	case METRIC_NCCL_COLLECTIVE_INFLIGHT_SECONDS:
		return round_seconds(expo->inflight_ns[i]);
	case METRIC_NCCL_COMMUNICATOR_LAST_SEQUENCE:
		return (double)atomic_load_explicit(&comm->last_sequence, relaxed);
	case METRIC_NCCL_COMMUNICATOR_OPERATIONS_ENQUEUED_TOTAL:
		return (double)atomic_load_explicit(&comm->enqueued, relaxed);
	case METRIC_NCCL_COMMUNICATOR_OPERATIONS_STARTED_TOTAL:
		return (double)(atomic_load_explicit(&comm->started, relaxed) + expo->running[i]);
	case METRIC_NCCL_COMMUNICATOR_OPERATIONS_COMPLETED_TOTAL:
		return (double)atomic_load_explicit(&comm->completed, relaxed);
	default:
		behind_s = tick < beat_tick ? (double)clock_ticks_to_ns(beat_tick - tick,
								       header->clock.ns_per_tick_q32) / 1e9 : 0;
		return tick ? (double)atomic_load_explicit(&header->beat_real_ns, relaxed) / 1e9 - behind_s : 0;
	}
}

static void write_comm_family(struct expo *expo, enum metric metric, struct text *text)
{
	bool begun = false;

	for (unsigned i = 0; i < BOX_COMMS; i++) {
		const struct box_comm *comm = &expo->box->comms[i];

		if (!expo->shown_comm[i] ||
		    (metric == METRIC_NCCL_COMMUNICATOR_LAST_PROGRESS_TIMESTAMP_SECONDS &&
		     !atomic_load_explicit(&comm->last_progress_tick, relaxed)))
			continue; /* no progress yet is not progress in 1970 */
		write_family_head(metric, &begun, text);
		text_add(text, "%s", metrics[metric].name);
		add_job_labels(expo, comm->gpu, text);
		text_add(text, ",rank=\"%d\",comm=\"0x%llx\"", comm->rank, (unsigned long long)comm->id);
		text_add_label(text, ",comm_name", comm->name[0] ? comm->name : "unknown");
		text_add(text, metric == METRIC_NCCL_COMMUNICATOR_LAST_PROGRESS_TIMESTAMP_SECONDS ? "} %.3f\n" : "} %.17g\n",
			 comm_value(expo, i, metric));
	}
}

/* Files that nobody merges: two processes may not say the same. */
static void add_owner_label(struct expo *expo, struct text *text)
{
	if (expo->config->make_dir)
		text_add_label(text, ",process", box_process(expo->box));
}

static void write_gpu_info(struct expo *expo, unsigned gpu, struct text *text)
{
	const struct box_gpu *info = &expo->box->header->gpu[gpu];
	bool begun = false;

	write_family_head(METRIC_NCCL_GPU_INFO, &begun, text);
	text_add(text, "%s", metrics[METRIC_NCCL_GPU_INFO].name);
	add_job_labels(expo, gpu, text);
	text_add_label(text, ",gpu_uuid", info->uuid[0] ? info->uuid : "unknown");
	text_add_label(text, ",pci_bus_id", info->pci_bus_id[0] ? info->pci_bus_id : "unknown");
	add_owner_label(expo, text);
	text_add(text, "} 1\n");
}

static void write_build_info(struct expo *expo, struct text *text)
{
	unsigned version = expo->box->header->nccl_version;
	bool begun = false;

	write_family_head(METRIC_NCCL_INSPECTOR_BUILD_INFO, &begun, text);
	text_add(text, "%s", metrics[METRIC_NCCL_INSPECTOR_BUILD_INFO].name);
	text_add_label(text, "{node", expo->config->node);
	text_add_label(text, ",plugin_version", expo->box->header->plugin_version);
	if (version)
		text_add(text, ",nccl_version=\"%u.%u.%u\"", version / 10000, version / 100 % 100,
			 version % 100);
	else
		text_add(text, ",nccl_version=\"unknown\"");
	add_owner_label(expo, text);
	text_add(text, "} 1\n");
}

/* One series of the process; `reason` NULL: without that label. */
static void write_process(struct expo *expo, unsigned gpu, enum metric metric, const char *reason,
			  bool *begun, struct text *text)
{
	write_family_head(metric, begun, text);
	text_add(text, "%s", metrics[metric].name);
	add_job_labels(expo, gpu, text);
	text_add_label(text, ",process", box_process(expo->box));
	if (reason)
		text_add_label(text, ",reason", reason);
	text_add(text, "} ");
}

static void write_process_families(struct expo *expo, unsigned gpu, struct text *text)
{
	const struct box_header *header = expo->box->header;
	bool begun = false;

	write_process(expo, gpu, METRIC_NCCL_INSPECTOR_LAST_WRITE_TIMESTAMP_SECONDS, NULL, &begun, text);
	text_add(text, "%.3f\n", (double)clock_ns(CLOCK_REALTIME) / 1e9);
	begun = false;
	for (unsigned reason = 0; reason < BOX_DROPS; reason++) {
		write_process(expo, gpu, METRIC_NCCL_INSPECTOR_EVENTS_DROPPED_TOTAL, drop_names[reason],
			      &begun, text);
		text_add(text, "%.17g\n", (double)atomic_load_explicit(&header->dropped[reason], relaxed));
	}
	begun = false;
	write_process(expo, gpu, METRIC_NCCL_INSPECTOR_SERIES_DROPPED_TOTAL, NULL, &begun, text);
	text_add(text, "%.17g\n", (double)atomic_load_explicit(&header->series_dropped, relaxed));
	begun = false;
	write_process(expo, gpu, METRIC_NCCL_INSPECTOR_SELF_SECONDS_TOTAL, NULL, &begun, text);
	text_add(text, "%.17g\n", round_seconds(atomic_load_explicit(&header->self_ns, relaxed)));
}

void expo_prom_write(struct expo *expo, unsigned gpu, struct text *text)
{
	text_clear(text);
	expo_choose(expo, gpu);
	for (enum metric m = METRIC_NCCL_BUS_BANDWIDTH_GBS;
	     m <= METRIC_NCCL_COLLECTIVE_EXEC_TIME_MICROSECONDS; m++)
		write_key_family(expo, m, false, text);
	for (enum metric m = METRIC_NCCL_P2P_BUS_BANDWIDTH_GBS; m <= METRIC_NCCL_P2P_EXEC_TIME_MICROSECONDS;
	     m++)
		write_key_family(expo, m, true, text);
	for (enum metric m = METRIC_NCCL_COLLECTIVE_OPERATIONS_TOTAL;
	     m <= METRIC_NCCL_COLLECTIVE_BUSY_SECONDS_TOTAL; m++)
		write_key_family(expo, m, false, text);
	for (enum metric m = METRIC_NCCL_P2P_OPERATIONS_TOTAL; m <= METRIC_NCCL_P2P_BUSY_SECONDS_TOTAL; m++)
		write_key_family(expo, m, true, text);
	for (enum metric m = METRIC_NCCL_COLLECTIVE_INFLIGHT_SECONDS;
	     m <= METRIC_NCCL_COMMUNICATOR_OPERATIONS_COMPLETED_TOTAL; m++)
		write_comm_family(expo, m, text);
	write_gpu_info(expo, gpu, text);
	if (gpu == 0) {
		write_process_families(expo, gpu, text);
		write_build_info(expo, text);
	}
	text_add(text, "# EOF\n");
}
