/* SPDX-License-Identifier: Apache-2.0 */
/* The Prometheus text of a box. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "comms.h"
#include "expo_prom.h"
#include "log2.h"
#include "tap.h"

static struct box box;
static struct track track;
static struct config config;
static struct expo expo;
static struct text text;
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
	config_copy_text(config.node, sizeof(config.node), "n1");
	config_copy_text(config.job, sizeof(config.job), "42");
	config_copy_text(config.cluster, sizeof(config.cluster), "sandbox");
	config_cut_nodelist(config.nodelist, "n[1-4]");
	box_open(&box, -1, "0", &error);
	box.header->gpu[0] = (struct box_gpu){ .uuid = "GPU-1", .minor = 3, .used = 1, .label = "GPU3" };
	track_init(&track, &box, clock_calibrate(),
		   &(struct track_options){ .p2p = true, .timing = BOX_TIMING_GPU });
	expo.box = &box;
	expo.config = &config;
	expo.api = 7;
	expo_window(&expo, clock_ticks(), track.ns_per_tick_q32);
}

static void *add_comm(const char *name)
{
	return comms_add(&track, &(struct comm_words){ .id = next_id, .name = name, .nranks = 8, .nnodes = 4, .rank = 5 });
}

static void operate(void *comm, const char *func, int peer, uint64_t bytes, uint64_t ns)
{
	void *op = track_operation(&track, comm,
				   &(struct event){ .peer = peer, .func = func, .datatype = "ncclInt8",
						    .algo = "RING", .proto = "SIMPLE", .count = bytes,
						    .channels = 1 });
	uint64_t now = track_now_ns(&track);

	track_kernel_stop(&track, track_kernel_start(&track, op, 0, now), now + ns);
}

static void render(void)
{
	expo_window(&expo, clock_ticks(), track.ns_per_tick_q32);
	expo_prom_write(&expo, 0, &text);
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
		 "slurm_nodelist=\"n[1-4]\",node=\"n1\",gpu=\"GPU3\",rank=\"5\",comm=\"0xabc\",comm_name=\"dp\","
		 "n_nodes=\"4\",nranks=\"8\",collective=\"AllReduce\",message_size=\"1-2MB\","
		 "algo_proto=\"RING_SIMPLE\"} 0.91796875\n") == 1,
	   "bandwidth is the geometric mean: sqrt(1.835 * 0.459) GB/s, every label there");
	ok(count("nccl_collective_exec_time_microseconds{") == 1 && count("\"} 2500\n") == 1,
	   "time is the arithmetic mean");
	ok(count("} 2097152\n") == 1 && count("} 2\n") >= 1, "operations and bytes are counted");
	ok(count("nccl_collective_busy_seconds_total{") == 1 && count("} 0.0048828125\n") == 1,
	   "busy seconds come in steps of 2^-10");
	render();
	ok(!count("nccl_bus_bandwidth_gbs") && !count("exec_time"), "a window without operations has no mean");
	ok(count("} 2097152\n") == 1, "but the counters stay");
	ok(!strcmp(text.data + text.length - 6, "# EOF\n"), "the last line says that the file is whole");
}

static void test_families(void)
{
	begin();
	void *comm = add_comm("dp");

	operate(comm, "AllGather", -1, 65536, 1000000);
	operate(comm, "Send", 6, 65536, 1000000);
	operate(comm, "Broadcast", -1, 65536, 1000000);
	render();
	ok(count("# HELP ") == count("# TYPE ") && count("# TYPE nccl_bus_bandwidth_gbs gauge\n") == 1,
	   "each family has one HELP and one TYPE");
	ok(count("\np2p_operation") == 0 && count("p2p_operation=\"Send\",message_size=\"64-128KB\"} ") == 5,
	   "a Send has five series and no algorithm");
	ok(count("collective=\"AllGather\"") == 5, "so has an AllGather");
	ok(count("nccl_communicator_operations_completed_total{") == 1 && count("reason=\"") == BOX_DROPS,
	   "communicator and drops are there");
	ok(count("gpu_uuid=\"GPU-1\"") == 1 && count("process=\"0_") > 1, "and the GPU and the process");
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

static void test_cap(void)
{
	begin();
	for (int i = 0; i < 40; i++) {
		void *comm = add_comm("many");

		next_id++;

		for (int k = 13; k < 20; k++)
			operate(comm, "AllReduce", -1, 1ull << k, 1000);
	}
	render();
	unsigned series = count("\n") - count("# ");

	ok(series <= EXPO_MAX_SERIES, "a GPU has at most %u series (%u)", EXPO_MAX_SERIES, series);
	ok(atomic_load(&box.header->series_dropped) > 0, "what is left out is counted");
}

static void test_equal_communicators(void)
{
	begin();
	void *first = add_comm("first");

	operate(first, "AllReduce", -1, 65536, 1000);
	comms_remove(&track, first);
	operate(add_comm("second"), "AllReduce", -1, 65536, 1000);
	render();
	ok(!count("\"first\"") && count("comm_name=\"second\"") >= 10 && atomic_load(&box.header->series_dropped) > 0,
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

static void test_aborted(void)
{
	begin();
	void *comm = add_comm("aborted");

	track_operation(&track, comm, &(struct event){ .peer = EVENT_NO_PEER, .func = "AllReduce", .count = 99999,
						       .channels = 1 });
	comms_remove(&track, comm);
	expo_window(&expo, clock_ticks() + 30 * ((1ull << 32) * 1000000000ull / track.ns_per_tick_q32),
		    track.ns_per_tick_q32);
	expo_prom_write(&expo, 0, &text);
	ok(strstr(text.data, "\nnccl_collective_inflight_seconds{") && count("comm_name=\"aborted\"} 0\n") >= 1,
	   "what an aborted communicator left has no age");
	ok(!count("last_progress_timestamp"), "no progress yet is not progress in 1970");
}

static void test_in_flight(void)
{
	begin();
	void *comm = add_comm("hung");

	track_operation(&track, comm, &(struct event){ .peer = EVENT_NO_PEER, .func = "AllReduce", .count = 99999,
						       .channels = 1 });
	expo_window(&expo, clock_ticks() + 30 * ((1ull << 32) * 1000000000ull / track.ns_per_tick_q32),
		    track.ns_per_tick_q32);
	expo_prom_write(&expo, 0, &text);
	const char *line = strstr(text.data, "\nnccl_collective_inflight_seconds{");
	double age = line ? strtod(strstr(line, "} ") + 2, NULL) : 0;

	ok(age > 29.9 && age < 30.1, "an operation that hangs has an age (%g s)", age);
}

int main(void)
{
	log2_init();
	test_a_collective();
	test_families();
	test_hostile_names();
	test_small_messages();
	test_cap();
	test_equal_communicators();
	test_a_key_that_serves_another();
	test_aborted();
	test_in_flight();
	return done_testing();
}
