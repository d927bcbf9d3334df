/* SPDX-License-Identifier: Apache-2.0 */
#include "prom/text_of_gpu.h"

#include <time.h>

#include "base/clock.h"
#include "prom/choose.h"
#include "prom/keys.h"
#include "prom/labels.h"
#include "prom/rounding.h"

#define relaxed memory_order_relaxed

static const char *const drop_names[BOX_DROPS] = {
	[BOX_DROP_NO_SLOT] = "no_slot",
	[BOX_DROP_NO_COMM] = "no_communicator",
	[BOX_DROP_NO_KEY] = "no_key",
	[BOX_DROP_EXPIRED] = "expired",
	[BOX_DROP_IMPLAUSIBLE] = "implausible",
	[BOX_DROP_STALE] = "stale",
	[BOX_DROP_NO_PEER] = "no_peer",
	[BOX_DROP_NO_GROUP] = "no_group",
	[BOX_DROP_JSON] = "json",
};

static const char *const net_states[BOX_NET_STATES] = {
	[BOX_NET_GPU] = "gpu",
	[BOX_NET_PEER] = "peer",
	[BOX_NET_WIRE] = "wire",
	[BOX_NET_FLUSH] = "flush",
};

static double comm_value(const struct prom *prom, unsigned i, enum metric metric)
{
	const struct box_comm *comm = &prom->box->comms[i];

	switch (metric) {
	case METRIC_NCCL_COLLECTIVE_INFLIGHT_SECONDS:
		return rounding_seconds(prom->inflight_ns[i]);
	case METRIC_NCCL_P2P_INFLIGHT_SECONDS:
		return rounding_seconds(prom->p2p_inflight_ns[i]);
	case METRIC_NCCL_COMMUNICATOR_LAST_SEQUENCE:
		return (double)atomic_load_explicit(&comm->last_sequence, relaxed);
	case METRIC_NCCL_COMMUNICATOR_OPERATIONS_ENQUEUED_TOTAL:
		return (double)atomic_load_explicit(&comm->enqueued, relaxed);
	case METRIC_NCCL_COMMUNICATOR_OPERATIONS_STARTED_TOTAL:
		return (double)prom->started[i];
	default:
		return (double)atomic_load_explicit(&comm->completed, relaxed);
	}
}

static void write_comm_family(struct prom_page *page, enum metric metric)
{
	bool begun = false;

	for (unsigned n = 0; n < page->prom->comms.count; n++) {
		unsigned i = page->prom->comms.row[n];

		prom_begin(page, metric, &begun);
		prom_comm_labels(page, i);
		prom_end(page, comm_value(page->prom, i, metric));
	}
}

static void write_last_progress(struct prom_page *page)
{
	const struct box_header *header = page->prom->box->header;
	double beat_s = (double)atomic_load_explicit(&header->beat_real_ns, relaxed) / 1e9;
	uint64_t beat_tick = atomic_load_explicit(&header->beat_tick, relaxed);
	bool begun = false;

	for (unsigned n = 0; n < page->prom->comms.count; n++) {
		unsigned i = page->prom->comms.row[n];
		uint64_t tick =
		    atomic_load_explicit(&page->prom->box->comms[i].last_progress_tick, relaxed);
		double behind_s = 0;

		if (!tick)
			continue; /* no progress yet is not progress in 1970 */
		if (tick < beat_tick)
			behind_s = (double)clock_ticks_to_ns(beat_tick - tick,
			                                     header->clock.ns_per_tick_q32) /
			           1e9;
		prom_begin(page, METRIC_NCCL_COMMUNICATOR_LAST_PROGRESS_TIMESTAMP_SECONDS, &begun);
		prom_comm_labels(page, i);
		prom_end_time(page, beat_s - behind_s);
	}
}

static void add_net_labels(struct prom_page *page, unsigned index)
{
	const struct box_net *net = &page->prom->box->nets[index];

	if (prom_repeat(page, &page->nets[index]))
		return;
	prom_comm_labels(page, net->comm);
	textbuf_add(page->text, ",peer=\"%d\",direction=\"%s\"", net->peer,
	            net->is_send ? "send" : "receive");
	prom_rendered(page, &page->nets[index]);
}

static void write_nets(struct prom_page *page)
{
	const struct prom_rows *rows = &page->prom->nets;
	const struct box_net *nets = page->prom->box->nets;
	bool begun = false;

	for (unsigned n = 0; n < rows->count; n++) {
		prom_begin(page, METRIC_NCCL_NETWORK_STEPS_TOTAL, &begun);
		add_net_labels(page, rows->row[n]);
		prom_end(page, (double)atomic_load_explicit(&nets[rows->row[n]].steps, relaxed));
	}
	begun = false;
	for (unsigned n = 0; n < rows->count; n++) {
		const struct box_net *net = &nets[rows->row[n]];

		for (unsigned state = 0; state < BOX_NET_STATES; state++) {
			/* A sender flushes nothing, a receiver waits for no credit. */
			if (state == (net->is_send ? BOX_NET_FLUSH : BOX_NET_PEER))
				continue;
			prom_begin(page, METRIC_NCCL_NETWORK_WAIT_SECONDS_TOTAL, &begun);
			add_net_labels(page, rows->row[n]);
			textbuf_add_label(page->text, ",state", net_states[state]);
			prom_end(page,
			         rounding_seconds(atomic_load_explicit(&net->ns[state], relaxed)));
		}
	}
}

/* Files that nobody merges: two processes may not say the same. */
static void add_owner_label(struct prom_page *page)
{
	if (page->prom->config->make_dir)
		textbuf_add_label(page->text, ",process", box_process(page->prom->box));
}

static void write_gpu_info(struct prom_page *page)
{
	const struct box_gpu *info = &page->prom->box->header->gpu[page->gpu];
	bool begun = false;

	prom_begin(page, METRIC_NCCL_GPU_INFO, &begun);
	prom_job_labels(page);
	textbuf_add_label(page->text, ",gpu_uuid", info->uuid[0] ? info->uuid : "unknown");
	textbuf_add_label(page->text, ",pci_bus_id",
	                  info->pci_bus_id[0] ? info->pci_bus_id : "unknown");
	add_owner_label(page);
	prom_end(page, 1);
}

static void write_build_info(struct prom_page *page)
{
	const struct box_header *header = page->prom->box->header;
	unsigned version = header->nccl_version;
	bool begun = false;

	prom_begin(page, METRIC_NCCL_INSPECTOR_BUILD_INFO, &begun);
	textbuf_add_label(page->text, "{node", page->prom->config->node);
	textbuf_add_label(page->text, ",plugin_version", header->plugin_version);
	if (version)
		textbuf_add(page->text, ",nccl_version=\"%u.%u.%u\"", version / 10000,
		            version / 100 % 100, version % 100);
	else
		TEXTBUF_ADD(page->text, ",nccl_version=\"unknown\"");
	add_owner_label(page);
	prom_end(page, 1);
}

/* A series of the process, up to its value; `reason` NULL: without that label. */
static void begin_process(struct prom_page *page, enum metric metric, const char *reason,
                          bool *begun)
{
	prom_begin(page, metric, begun);
	prom_job_labels(page);
	textbuf_add_label(page->text, ",process", box_process(page->prom->box));
	if (reason)
		textbuf_add_label(page->text, ",reason", reason);
}

static void write_process(struct prom_page *page, enum metric metric, double value)
{
	bool begun = false;

	begin_process(page, metric, NULL, &begun);
	prom_end(page, value);
}

static void write_process_families(struct prom_page *page)
{
	const struct box_header *header = page->prom->box->header;
	uint32_t sampling = atomic_load_explicit(&header->sampling, relaxed);
	bool begun = false;

	begin_process(page, METRIC_NCCL_INSPECTOR_LAST_WRITE_TIMESTAMP_SECONDS, NULL, &begun);
	prom_end_time(page, (double)clock_ns(CLOCK_REALTIME) / 1e9);
	begun = false;
	for (unsigned reason = 0; reason < BOX_DROPS; reason++) {
		begin_process(page, METRIC_NCCL_INSPECTOR_EVENTS_DROPPED_TOTAL, drop_names[reason],
		              &begun);
		prom_end(page, (double)atomic_load_explicit(&header->dropped[reason], relaxed));
	}
	write_process(page, METRIC_NCCL_INSPECTOR_SERIES_DROPPED_TOTAL,
	              (double)atomic_load_explicit(&header->series_dropped, relaxed));
	write_process(page, METRIC_NCCL_INSPECTOR_SELF_SECONDS_TOTAL,
	              rounding_seconds(atomic_load_explicit(&header->self_ns, relaxed)));
	write_process(page, METRIC_NCCL_INSPECTOR_HOT_SECONDS_TOTAL,
	              rounding_seconds(atomic_load_explicit(&header->hot_ns, relaxed)));
	write_process(page, METRIC_NCCL_INSPECTOR_SILENT_SECONDS_TOTAL,
	              rounding_seconds(atomic_load_explicit(&header->silent_ns, relaxed)));
	write_process(page, METRIC_NCCL_INSPECTOR_SAMPLING_RATIO,
	              rounding_binary(1.0 / (sampling ? sampling : 1), 11));
	if (atomic_load_explicit(&header->net_on, relaxed))
		write_process(
		    page, METRIC_NCCL_NETWORK_FOLLOWED_RATIO,
		    rounding_binary(1.0 / atomic_load_explicit(&header->net_every, relaxed), 17));
	if (page->prom->quiet_rate >= 0)
		write_process(page, METRIC_NCCL_INSPECTOR_QUIET_IO_BYTES_PER_SECOND,
		              rounding_binary(page->prom->quiet_rate, 9));
	if (page->prom->config->json)
		write_process(page, METRIC_NCCL_INSPECTOR_JSON_LINES_TOTAL,
		              (double)atomic_load_explicit(&header->json_lines, relaxed));
}

void prom_text_of_gpu(struct prom *prom, unsigned gpu, struct textbuf *text)
{
	struct prom_page page = { .prom = prom, .text = text, .gpu = gpu };

	textbuf_clear(text);
	prom_choose(prom, gpu);
	prom_key_gauges(&page);
	prom_key_counters(&page);
	write_comm_family(&page, METRIC_NCCL_COLLECTIVE_INFLIGHT_SECONDS);
	write_comm_family(&page, METRIC_NCCL_P2P_INFLIGHT_SECONDS);
	write_comm_family(&page, METRIC_NCCL_COMMUNICATOR_LAST_SEQUENCE);
	write_last_progress(&page);
	write_comm_family(&page, METRIC_NCCL_COMMUNICATOR_OPERATIONS_ENQUEUED_TOTAL);
	write_comm_family(&page, METRIC_NCCL_COMMUNICATOR_OPERATIONS_STARTED_TOTAL);
	write_comm_family(&page, METRIC_NCCL_COMMUNICATOR_OPERATIONS_COMPLETED_TOTAL);
	write_nets(&page);
	prom_labels(&page);
	write_gpu_info(&page);
	if (gpu == 0) {
		write_process_families(&page);
		write_build_info(&page);
	}
	TEXTBUF_ADD(text, "# EOF\n");
}
