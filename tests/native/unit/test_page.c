/* SPDX-License-Identifier: Apache-2.0 */
/* The Prometheus text of a box. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log2.h"
#include "base/printable.h"
#include "hot/calls.h"
#include "hot/follow.h"
#include "hot/kernels.h"
#include "hot/labels.h"
#include "hot/start.h"
#include "prom/choose.h"
#include "prom/text_of_gpu.h"
#include "prom/window.h"
#include "upkeep/comms.h"
#include "upkeep/sweep.h"
#include "tap.h"

static struct box box;
static struct track track;
static struct config config;
static struct prom expo;
static struct textbuf text;
static uint64_t next_id; /* of a communicator */

static const char *no_environment(const char *name)
{
	(void)name;
	return NULL;
}

static void begin(void)
{
	int error;

	next_id = 0xabc;
	config_load(&config, no_environment);
	memset(&expo, 0, sizeof(expo));
	expo.quiet_rate = -1;
	printable_copy(config.node, sizeof(config.node), "n1");
	printable_copy(config.job, sizeof(config.job), "42");
	printable_copy(config.cluster, sizeof(config.cluster), "sandbox");
	config_cut_nodelist(config.nodelist, "n[1-4]");
	box_open(&box, -1, "0", &error);
	box.header->gpu[0] =
	    (struct box_gpu){ .uuid = "GPU-1", .minor = 3, .used = 1, .label = "GPU3" };
	printable_copy(box.header->plugin_version, sizeof(box.header->plugin_version), "1.2.3");
	track_init(&track, &box, clock_calibrate(),
	           &(struct track_options){ .p2p = true, .timing = BOX_TIMING_GPU });
	expo.box = &box;
	expo.config = &config;
	expo.api = 7;
	prom_window(&expo, clock_ticks(), track.ns_per_tick_q32);
}

static void *add_comm(const char *name)
{
	return comms_add(&track,
	                 &(struct comm_fields){
			     .id = next_id, .name = name, .nranks = 8, .nnodes = 4, .rank = 5 });
}

static void operate(void *comm, const char *func, int peer, uint64_t bytes, uint64_t ns)
{
	void *op = track_operation(&track, comm,
	                           &(struct event){ .peer = peer,
	                                            .func = func,
	                                            .datatype = "ncclInt8",
	                                            .algo = "RING",
	                                            .proto = "SIMPLE",
	                                            .count = bytes,
	                                            .channels = 1 });
	uint64_t now = track_now_ns(&track);

	track_kernel_stop(&track, track_kernel_start(&track, op, 0, now), now + ns);
}

static void render(void)
{
	static struct sweep sweep;

	sweep_round(&sweep, &track, clock_ticks());
	prom_window(&expo, clock_ticks(), track.ns_per_tick_q32);
	prom_text_of_gpu(&expo, 0, &text);
}

static unsigned count(const char *needle)
{
	unsigned n = 0;

	for (const char *at = text.data; (at = strstr(at, needle)); at++)
		n++;
	return n;
}

static void test_a_collective(void)
{
	begin();
	void *comm = add_comm("dp");

	operate(comm, "AllReduce", -1, 1 << 20, 1000000);
	operate(comm, "AllReduce", -1, 1 << 20, 4000000);
	render();
	ok(count("nccl_bus_bandwidth_gbs{version=\"v7.1\",cluster=\"sandbox\",slurm_job_id=\"42\","
	         "slurm_nodelist=\"n[1-4]\",node=\"n1\",gpu=\"GPU3\",rank=\"5\",comm=\"0xabc\","
	         "comm_name=\"dp\","
	         "n_nodes=\"4\",nranks=\"8\",collective=\"AllReduce\",message_size=\"1-2MB\","
	         "algo_proto=\"RING_SIMPLE\"} 0.91796875\n") == 1,
	   "bandwidth is the geometric mean: sqrt(1.835 * 0.459) GB/s, every label there");
	ok(count("nccl_collective_exec_time_microseconds{") == 1 && count("\"} 2500\n") == 1,
	   "time is the arithmetic mean");
	ok(count("} 2097152\n") == 1 && count("} 2\n") >= 1, "operations and bytes are counted");
	ok(count("nccl_collective_busy_seconds_total{") == 1 && count("} 0.0048828125\n") == 1,
	   "busy seconds come in steps of 2^-10");
	render();
	ok(!count("nccl_bus_bandwidth_gbs") && !count("exec_time"),
	   "a window without operations has no mean");
	ok(count("} 2097152\n") == 1, "but the counters stay");
	ok(!strcmp(text.data + text.length - 6, "# EOF\n"),
	   "the last line says that the file is whole");
}

static void test_families(void)
{
	begin();
	void *comm = add_comm("dp");

	operate(comm, "AllGather", -1, 65536, 1000000);
	operate(comm, "Send", 6, 65536, 1000000);
	operate(comm, "Broadcast", -1, 65536, 1000000);
	render();
	ok(count("# HELP ") == count("# TYPE ") &&
	       count("# TYPE nccl_bus_bandwidth_gbs gauge\n") == 1,
	   "each family has one HELP and one TYPE");
	ok(count("\np2p_operation") == 0 &&
	       count("p2p_operation=\"Send\",message_size=\"64-128KB\"} ") == 5,
	   "a Send has five series and no algorithm");
	ok(count("collective=\"AllGather\"") == 5, "so has an AllGather");
	ok(count("nccl_communicator_operations_completed_total{") == 1 &&
	       count("reason=\"") == BOX_DROPS && !count("(null)"),
	   "communicator and drops are there");
	ok(count("gpu_uuid=\"GPU-1\"") == 1 && count("process=\"0_") > 1,
	   "and the GPU and the process");
}

static void test_hostile_names(void)
{
	begin();
	operate(add_comm("a\"b\\c\nd\xff{} e"), "AllReduce", -1, 65536, 1000);
	render();
	ok(count("comm_name=\"a\\\"b\\\\c?d?{} e\"") >= 5, "a name is escaped and printable");
	begin();
	operate(add_comm(NULL), "AllReduce", -1, 65536, 1000);
	render();
	ok(count("comm_name=\"unknown\"") >= 5, "no name is said to be unknown");
}

static void test_small_messages(void)
{
	begin();
	void *comm = add_comm("x");

	operate(comm, "AllReduce", -1, 8191, 1000);
	operate(comm, "AllReduce", -1, 8192, 1000);
	render();
	ok(!count("4-8KB") && count("8-16KB") == 5, "messages below the minimum have no series");
	ok(count("nccl_communicator_operations_completed_total{") && box.comms[0].completed == 2,
	   "but are counted");
}

static void add_net(unsigned row, uint32_t comm, int peer, bool is_send, uint64_t ns)
{
	struct box_net *net = &box.nets[row];

	*net = (struct box_net){ .steps = 10,
	                         .comm = comm,
	                         .peer = peer,
	                         .is_send = is_send,
	                         .comm_generation = box.comms[comm].generation,
	                         .used = 1 };
	net->ns[is_send ? BOX_NET_PEER : BOX_NET_FLUSH] = ns;
}

static void test_cap(void)
{
	begin();
	config.json = true;
	for (int i = 0; i < 40; i++) {
		void *comm = add_comm("many");

		next_id++;
		for (int k = 13; k < 20; k++)
			operate(comm, "AllReduce", -1, 1ull << k, i == 20 ? 2000 : 1000);
	}
	render();
	unsigned series = count("\n") - count("# "), of_comms = 7 * 40;
	/* 280 kinds: the last ones share a key for each size, without a bus bandwidth. */
	unsigned of_keys = 5 * KEYS_OWN + 4 * 7;
	uint64_t dropped = atomic_load(&box.header->series_dropped);

	ok(series <= PROM_MAX_SERIES && series > PROM_MAX_SERIES - 5,
	   "a GPU has at most %u series (%u)", PROM_MAX_SERIES, series);
	ok(dropped == of_keys + of_comms - (series - 9 - BOX_DROPS),
	   "what is left out is counted (%lu)", (unsigned long)dropped);
	ok(count("comm=\"0xad0\"") == 7 * 5, "the busiest have series");
	for (unsigned row = 0; row < BOX_NETS; row++)
		add_net(row, row % 40, (int)row, row % 2, 1000);
	for (unsigned i = 0; i < BOX_KEYS; i++) {
		box.keys[i].untimed_ops = box.keys[i].phased_ops = i + 1;
		box.keys[i].begun = ++box.keys[i].ops;
	}
	render();
	series = count("\n") - count("# ");
	ok(series <= PROM_MAX_SERIES && count("\nnccl_network_") == PROM_MAX_NET,
	   "with all that there can be, too (%u)", series);
}

static void test_equal_communicators(void)
{
	begin();
	void *first = add_comm("first");

	operate(first, "AllReduce", -1, 65536, 1000);
	comms_remove(&track, first);
	operate(add_comm("second"), "AllReduce", -1, 65536, 1000);
	render();
	ok(!count("\"first\"") && count("comm_name=\"second\"") >= 10 &&
	       atomic_load(&box.header->series_dropped) > 0,
	   "of two communicators with one id and rank the newer has the series");
}

static void test_a_key_that_serves_another(void)
{
	begin();
	void *comm = add_comm("short");

	for (int i = 0; i < 3; i++)
		operate(comm, "AllReduce", -1, 65536, 1000000000);
	render();
	comms_remove(&track, comm);
	for (unsigned i = 0; i < BOX_LIVE_COMMS; i++) {
		next_id++;
		comm = add_comm("next");
		if (i == BOX_LIVE_COMMS - 1)
			for (int k = 0; k < 5; k++)
				operate(comm, "AllReduce", -1, 65536, 20000);
		comms_remove(&track, comm);
	}
	render();
	ok(count("nccl_collective_exec_time_microseconds{") == 1 && count("} 20\n") == 1,
	   "a mean never mixes two kinds of operation");
}

/* Renders what `seconds` from now would be seen. */
static void render_later(unsigned seconds)
{
	uint64_t ticks_per_s = (1ull << 32) * 1000000000ull / track.ns_per_tick_q32;

	prom_window(&expo, clock_ticks() + seconds * ticks_per_s, track.ns_per_tick_q32);
	prom_text_of_gpu(&expo, 0, &text);
}

/* Value of the only series of a metric; -1: not there. */
static double value_of(const char *metric)
{
	char begin[80];

	snprintf(begin, sizeof(begin), "\n%s{", metric);
	const char *line = strstr(text.data, begin);

	return line && !strstr(line + 1, begin) ? strtod(strstr(line, "} ") + 2, NULL) : -1;
}

static void test_untimed(void)
{
	begin();
	void *comm = add_comm("dp");

	operate(comm, "Send", 5, 65536, 1000);
	operate(comm, "Send", 5, 65536, 1000);
	track_copy_engine(
	    &track, comm,
	    &(struct abi_ce_coll){ .func = "AllGather", .datatype = "ncclInt8", .count = 65536 });
	operate(comm, "AllReduce", -1, 65536, 1000);
	render();
	ok(value_of("nccl_p2p_untimed_operations_total") == 2 &&
	       value_of("nccl_p2p_untimed_bytes_total") == 131072,
	   "Sends to itself are counted apart");
	ok(!count("nccl_p2p_operations_total") && !count("nccl_p2p_bytes_total") &&
	       !count("nccl_p2p_busy"),
	   "and not among those with a time");
	ok(value_of("nccl_collective_untimed_operations_total") == 1 &&
	       count("algo_proto=\"CE\"} 65536\n") == 1,
	   "so is what copy engines run, which have no protocol");
	ok(value_of("nccl_collective_operations_total") == 1 && count("\"AllReduce\"") == 5 &&
	       count("\"AllGather\"") == 2,
	   "a kind of operation has the series that it has values for");
}

static void test_grouped(void)
{
	begin();
	void *comm = add_comm("moe"), *group = track_group_start(&track, comm), *call = NULL,
	     *ops[8];
	uint64_t now = track_now_ns(&track);

	for (int peer = 0; peer < 8; peer++)
		call = track_p2p_call(&track, comm, group);
	for (int peer = 0; peer < 8; peer++)
		ops[peer] = track_operation(&track, comm,
		                            &(struct event){ .peer = peer,
		                                             .func = "Send",
		                                             .datatype = "ncclInt8",
		                                             .count = 65536,
		                                             .channels = 1,
		                                             .parent = call });
	track_group_stop(&track, group);
	for (int peer = 0; peer < 8; peer++)
		track_kernel_stop(&track, track_kernel_start(&track, ops[peer], 0, now),
		                  now + 1000);
	render();
	ok(count("collective=\"Scatter\",message_size=\"512-1024KB\",algo_proto=\"GROUP\"} ") ==
	           5 &&
	       count("p2p_operation=\"Send\"") >= 5,
	   "a group of Sends is an operation of its own, without a protocol");
}

/* Half a second of waiting, a quarter of work. */
static void operate_in_phases(void *comm, const char *func, int peer)
{
	void *op = track_operation(&track, comm,
	                           &(struct event){ .peer = peer,
	                                            .func = func,
	                                            .count = 65536,
	                                            .datatype = "ncclInt8",
	                                            .algo = "RING",
	                                            .proto = "SIMPLE",
	                                            .channels = 1 });
	uint64_t now = track_now_ns(&track);
	void *kernel = track_kernel_start(&track, op, 0, now);

	track_phase_stop(&track, track_phase_start(&track, kernel, 0), now + 500000000);
	track_kernel_stop(&track, kernel, now + 750000000);
}

static void test_waiting(void)
{
	begin();
	void *comm = add_comm("dp");

	operate(comm, "AllReduce", -1, 65536, 1000);
	render();
	ok(!count("_wait_"), "without phases nothing is said of waiting");
	operate_in_phases(comm, "AllReduce", EVENT_NO_PEER);
	render();
	ok(value_of("nccl_collective_wait_seconds_total") == 0.5 &&
	       value_of("nccl_collective_wait_operations_total") == 1 &&
	       value_of("nccl_collective_operations_total") == 2,
	   "waiting is of the operations that told of it");
}

static void test_network(void)
{
	begin();
	operate(add_comm("dp"), "AllReduce", -1, 65536, 1000);
	render();
	ok(!count("nccl_network_"), "without network detail there is none");
	add_net(7, 0, 6, true, 2500000000);
	add_net(9, 0, 4, false, 1000000000);
	add_net(11, 0, 3, false, 1000000000);
	box.nets[11].comm_generation++;
	next_id++;
	add_comm("on another GPU");
	box.comms[1].gpu = 1;
	add_net(12, 1, 3, false, 1000000000);
	render();
	ok(count("comm_name=\"dp\",peer=\"6\",direction=\"send\",state=\"peer\"} 2.5\n") == 1 &&
	       count("peer=\"6\",direction=\"send\",state=\"") == 3 &&
	       !count("send\",state=\"flush"),
	   "a sender waits for its GPU, the receiver's credit and the wire");
	ok(count("peer=\"4\",direction=\"receive\",state=\"flush\"} 1\n") == 1 &&
	       !count("receive\",state=\"peer") && count("direction=\"receive\"} 10\n") == 1,
	   "a receiver for the wire, the flush and its GPU");
	ok(!count("peer=\"3\""), "what is of an earlier communicator or another GPU is not shown");
	for (unsigned row = 0; row < BOX_NETS; row++)
		add_net(row, 0, (int)row, row % 2, (row * 7 % BOX_NETS) * 1000000000ull);
	render();
	ok(count("\nnccl_network_") == PROM_MAX_NET &&
	       count("direction=\"send\",state=\"peer\"} 255\n") == 1 &&
	       count("state=\"flush\"} 0\n") == 0,
	   "many peers: %u series of those that waited longest", PROM_MAX_NET);
}

static void tell(void *comm, uint64_t user_tag, const char *kernel)
{
	labels_told(&track, comm, user_tag, kernel, 64, NULL);
}

static void test_labels(void)
{
	begin();
	void *comm = add_comm("dp");

	operate(comm, "AllReduce", -1, 65536, 1000);
	render();
	ok(!count("nccl_label_") && !count("nccl_root_"), "without labels there is none");
	tell(comm, 7, "LDMC");
	tell(comm, 7, NULL);
	operate(comm, "Broadcast", -1, 65536, 500000000);
	render();
	ok(count("process=\"0_") && count(",label=\"user_tag\",value=\"7\"} 2\n") == 1 &&
	       count(",label=\"user_tag\",value=\"7\"} 128\n") == 1 &&
	       count(",label=\"kernel\",value=\"LDMC\"} 1\n") == 1,
	   "operations and bytes have the application's tag, and the kernel");
	ok(count(",comm_name=\"dp\",collective=\"Broadcast\",root=\"0\"} 1\n") == 1 &&
	       value_of("nccl_root_busy_seconds_total") == 0.5,
	   "a Broadcast has its root");
	box.labels[BOX_LABEL_USER_TAGS - 2] = box.labels[0];
	render();
	ok(count("label=\"user_tag\",value=\"7\"} 4\n") == 1 && count("label=\"user_tag\"") == 3,
	   "one that has two places has one series with what both have");
	box.comms[0].gpu = 1;
	render();
	ok(!count("root=") && count("value=\"7\""), "roots are with the GPU of their communicator");
	box.comms[0].gpu = 0;
	for (unsigned i = 1; i < 100; i++)
		for (unsigned j = 0; j < i; j++)
			tell(comm, i, NULL);
	render();
	ok(count("\nnccl_label_") + count("\nnccl_root_") == PROM_MAX_LABELS &&
	       count("value=\"other\"} ") == 3 && !count("value=\"2\""),
	   "many labels: %u series, of those with most operations", PROM_MAX_LABELS);
}

static void test_process(void)
{
	begin();
	add_comm("dp");
	render();
	ok(value_of("nccl_inspector_sampling_ratio") == 1 &&
	       value_of("nccl_inspector_silent_seconds_total") == 0,
	   "as a rule every operation is timed");
	ok(!count("nccl_network_followed_ratio"), "without network detail there is no share of it");
	box.header->net_on = 1;
	box.header->net_every = 16;
	render();
	ok(value_of("nccl_network_followed_ratio") == 0.0625, "with it there is");
	box.header->sampling = 8;
	box.header->silent_ns = 3000000000;
	box.header->hot_ns = 1500000000;
	box.header->json_lines = 77;
	box.header->dropped[BOX_DROP_JSON] = 5;
	render();
	ok(value_of("nccl_inspector_sampling_ratio") == 0.125 &&
	       value_of("nccl_inspector_silent_seconds_total") == 3 &&
	       value_of("nccl_inspector_hot_seconds_total") == 1.5 &&
	       count("reason=\"json\"} 5\n") == 1,
	   "what was not measured is told");
	config.json = true;
	render();
	ok(value_of("nccl_inspector_json_lines_total") == 77,
	   "lines are counted where they are asked for");
	config.json = false;
	render();
	ok(!count("json_lines"), "and only there");
}

static void test_aborted(void)
{
	begin();
	void *comm = add_comm("aborted");

	track_operation(
	    &track, comm,
	    &(struct event){
		.peer = EVENT_NO_PEER, .func = "AllReduce", .count = 99999, .channels = 1 });
	comms_remove(&track, comm);
	render_later(30);
	ok(strstr(text.data, "\nnccl_collective_inflight_seconds{") &&
	       count("comm_name=\"aborted\"} 0\n") >= 1,
	   "what an aborted communicator left has no age");
	ok(!count("last_progress_timestamp"), "no progress yet is not progress in 1970");
}

static void test_in_flight(void)
{
	static struct sweep sweep;

	begin();
	void *comm = add_comm("hung"),
	     *op = track_operation(&track, comm,
	                           &(struct event){ .peer = EVENT_NO_PEER,
	                                            .func = "AllReduce",
	                                            .count = 99999,
	                                            .datatype = "ncclInt8",
	                                            .channels = 1 });

	sweep_round(&sweep, &track, clock_ticks());
	render_later(30);
	double age = value_of("nccl_collective_inflight_seconds");

	ok(age > 29.9 && age < 30.1, "an operation that hangs has an age (%g s)", age);
	ok(value_of("nccl_communicator_operations_enqueued_total") == 1 &&
	       value_of("nccl_communicator_operations_started_total") == 0,
	   "and has not begun");
	render_later(31);
	ok(value_of("nccl_collective_inflight_seconds") > age + 0.9,
	   "the next text has a higher age");
	ok(value_of("nccl_p2p_inflight_seconds") == 0, "and is no Send or Recv");
	uint64_t now = track_now_ns(&track);
	void *channel = track_kernel_start(&track, op, 0, now);

	render_later(32);
	ok(value_of("nccl_communicator_operations_started_total") == 1 &&
	       value_of("nccl_communicator_operations_completed_total") == 0,
	   "once its kernel runs it has begun");
	prom_window(&expo, clock_ticks(), track.ns_per_tick_q32);
	track_kernel_stop(&track, channel, now + 1000);
	prom_text_of_gpu(&expo, 0, &text);
	ok(value_of("nccl_communicator_operations_started_total") == 1,
	   "and once only, if it ends while the text is written");
	operate(comm, "AllReduce", -1, 4096, 1000);
	render();
	ok(value_of("nccl_communicator_operations_started_total") == 2,
	   "the next one is the second");
}

static void test_posted_receive(void)
{
	static struct sweep sweep;

	begin();
	track_operation(
	    &track, add_comm("pp"),
	    &(struct event){
		.peer = 1, .func = "Recv", .count = 99999, .datatype = "ncclInt8", .channels = 1 });
	sweep_round(&sweep, &track, clock_ticks());
	render_later(3600);
	ok(value_of("nccl_collective_inflight_seconds") == 0 &&
	       value_of("nccl_p2p_inflight_seconds") > 3599,
	   "a Recv that waits for its Send is no collective that hangs");
}

/* A text with every metric, for tests/contract/test_metrics_table.py. */
static void test_all_metrics(const char *path)
{
	begin();
	void *comm = add_comm("all");

	config.json = true;
	box.header->net_on = box.header->net_every = 1;
	expo.quiet_rate = 1e6;
	config.make_dir = false; /* a job's directory: the agent reads it */
	operate_in_phases(comm, "AllReduce", EVENT_NO_PEER);
	operate_in_phases(comm, "Send", 6);
	operate(comm, "Send", 5, 65536, 1000);
	track_copy_engine(
	    &track, comm,
	    &(struct abi_ce_coll){ .func = "AllGather", .datatype = "ncclInt8", .count = 65536 });
	add_net(0, 0, 6, true, 1000000000);
	add_net(1, 0, 4, false, 1000000000);
	operate(comm, "Broadcast", EVENT_NO_PEER, 65536, 1000);
	tell(comm, 7, "LDMC");
	render();
	FILE *file = path ? fopen(path, "w") : NULL;

	ok(!path || (file && fwrite(text.data, text.length, 1, file) == 1),
	   "a text with every metric");
	if (file)
		fclose(file);
}

int main(int argc, char **argv)
{
	log2_init();
	test_a_collective();
	test_families();
	test_hostile_names();
	test_small_messages();
	test_cap();
	test_equal_communicators();
	test_a_key_that_serves_another();
	test_untimed();
	test_grouped();
	test_waiting();
	test_network();
	test_labels();
	test_process();
	test_aborted();
	test_in_flight();
	test_posted_receive();
	test_all_metrics(argc > 1 ? argv[1] : NULL);
	return done_testing();
}
