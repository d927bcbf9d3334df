/* SPDX-License-Identifier: Apache-2.0 */
/* Any calls in any order, with handles of anybody and times of any clock, through the entry points
 * that NCCL finds: nothing may crash, and after each input the laws of laws.h hold.
 *
 * The first bytes choose the interface and the environment, each following one a call.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "fresh.h"
#include "inspector.h"
#include "still.h"

#define SECOND_NS 1000000000ull

/* --- actions --- */

static void make_comm(void)
{
	struct calls_words words = driver_words();
	uint8_t byte = bytes_u8(&run.in);
	unsigned api = byte & 128 ? 1 + byte % CALLS_VERSIONS : run.api;

	if (run.comm_count == CONTEXTS)
		return;
	run.comms[run.comm_count].api = api;
	run.comms[run.comm_count].ops = 0;
	calls_init(api, &run.comms[run.comm_count].context,
	           &run.masks[byte >= 0xf0 ? byte % MASKS : 0], &words);
	run.comm_count++;
}

static void make_many_comms(void)
{
	const uint8_t *at = run.in.at;

	for (unsigned i = 0; i < 20; i++) {
		run.in.at = at;
		make_comm();
	}
}

static void end_comm(void)
{
	unsigned api;
	void *context = driver_context(&api);

	calls_finalize(api, context);
}

static void start_one(uint64_t type)
{
	unsigned api;
	void *context = driver_context(&api), *parent = driver_handle();
	struct calls_words words = driver_words();

	if (type == ABI_P2P)
		words.plan = driver_handle();
	driver_start(api, context, type, parent, &words);
}

static void start_any(void)
{
	static const uint64_t types[] = { ABI_GROUP,      ABI_COLL_API, ABI_P2P_API,    ABI_CE_COLL,
	                                  ABI_GROUP_API,  ABI_PROXY_OP, ABI_PROXY_STEP, 0x20,
	                                  ABI_NET_PLUGIN, 0x800,        0x2000,         0 };
	uint8_t byte = bytes_u8(&run.in);

	start_one(byte < 0xf0 ? PICK(types, byte) : bytes_u64(&run.in));
}

static void start_coll(void)
{
	start_one(ABI_COLL);
}

static void start_p2p(void)
{
	start_one(ABI_P2P);
}

static void start_child(uint64_t type)
{
	uint8_t byte = bytes_u8(&run.in);
	struct calls_words words = { .channel = byte < 0xf0 ? byte & 63 : byte,
	                             .phase = byte >> 6 };
	void *parent = driver_handle();

	words.gpu_ns = driver_gpu_ns();
	driver_start(run.api, NULL, type, parent, &words);
}

static void start_kernel(void)
{
	start_child(ABI_KERNEL_CH);
}

static void start_phase(void)
{
	start_child(ABI_KERNEL_PHASE);
}

static void tell_state(void)
{
	static const int states[] = { 22, 22, 22, 31, 8,  9, 10, 11,  12,
	                              20, 19, 21, 23, 24, 0, -1, 1000 };
	uint8_t byte = bytes_u8(&run.in);
	void *handle = driver_handle();
	union abi_state_args args = { .gpu_ns = driver_gpu_ns() };

	calls_state(run.api, handle, PICK(states, byte), byte >= 0xf0 ? NULL : &args);
}

static void stop_one(void)
{
	calls_stop(run.api, driver_handle());
}

/* As NCCL does it, without the odd. */
static void whole_operation(void)
{
	unsigned api;
	void *context = driver_context(&api);
	struct calls_words words = driver_words(), kernel = words;
	uint64_t begin_ns = driver_gpu_now(), took_ns = 1 + bytes_u8(&run.in) * 4000ull;
	void *operation, *channels[4];

	words.channels = 1 + words.channels % 4;
	driver_start(api, context, words.captured ? ABI_P2P : ABI_COLL, driver_handle(), &words);
	operation = run.handle_count ? run.handles[(run.handle_count - 1) % HANDLES] : NULL;
	still_now_ns += took_ns;
	for (unsigned i = 0; i < words.channels; i++) {
		kernel.channel = (uint8_t)(words.channel + i) & 63;
		kernel.gpu_ns = begin_ns + i;
		channels[i] =
		    calls_start(api, context, calls_type(api, ABI_KERNEL_CH), operation, &kernel);
	}
	for (unsigned i = 0; i < words.channels; i++) {
		union abi_state_args args = { .gpu_ns = begin_ns + took_ns + i };

		calls_state(api, channels[i], ABI_STATE_KERNEL_CH_STOP, &args);
		calls_stop(api, channels[i]);
	}
}

/* Many that never end, and with several communicators soon all slots. */
static void crowd(void)
{
	unsigned api, count = bytes_u8(&run.in);

	void *context = driver_context(&api);
	struct calls_words words = driver_words();

	if (count >= 0xf0)
		count = 2500;
	for (unsigned i = 0; i < count; i++)
		driver_start(api, context, ABI_COLL, NULL, &words);
}

static void many_whole(void)
{
	unsigned count = bytes_u8(&run.in);
	const uint8_t *at = run.in.at;

	for (unsigned i = 0; i < count; i++) {
		run.in.at = at;
		whole_operation();
	}
}

static void rounds(void)
{
	uint8_t byte = bytes_u8(&run.in);

	still_cpu_ns = byte & 128 ? 50000000 : 1000;
	fresh_rounds((byte < 0xf8 ? 1u + byte % 4u : 65u) * SECOND_NS); /* pass_time is cheaper */
}

static void pass_time(void)
{
	uint8_t byte = bytes_u8(&run.in);

	still_step_ns = byte & 128 ? 1u << (byte & 31) % 24 : 20;
	still_now_ns += 1ull << byte % 40;
}

static void (*const actions[])(void) = {
	make_comm,       make_many_comms, end_comm,    start_any,  start_coll, start_p2p,
	start_kernel,    start_kernel,    start_phase, tell_state, tell_state, stop_one,
	whole_operation, crowd,           many_whole,  rounds,     pass_time,
};

/* --- an input --- */

static void set(const char *name, bool on)
{
	setenv(name, on ? "1" : "0", 1);
}

static void choose_environment(void)
{
	uint8_t byte = bytes_u8(&run.in), more = bytes_u8(&run.in);

	set("NCCL_INSPECTOR_ENABLE", byte != 0xff);
	set("NCCL_INSPECTOR_PROM_DUMP", !(byte & 1));
	set("NCCL_INSPECTOR_JSON", byte & 2);
	set("NCCL_INSPECTOR_DUMP_VERBOSE", (byte & 0x3c) == 0x3c);
	set("NCCL_INSPECTOR_ENABLE_P2P", !(byte & 64) || byte & 32);
	set("NCCL_INSPECTOR_PHASES", byte & 128);
	set("NCCL_INSPECTOR_HOST_TIME", more & 16);
	setenv("NCCL_INSPECTOR_NET", more & 1 ? "on" : more & 2 ? "auto" : "off", 1);
	setenv("NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS", more & 4 ? "1000000" : "-1", 1);
	setenv("NCCL_INSPECTOR_BUDGET_PERCENT", more & 8 ? "0.001" : "1", 1);
	setenv("NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", "0", 1);
	setenv("NCCL_INSPECTOR_JSON_MAX_BYTES", "65536", 1);
}

static void check_metrics(const struct textbuf *metrics)
{
	static const char end[] = "# EOF\n";

	if (!metrics->length)
		return;
	if (metrics->failed || metrics->length < strlen(end) ||
	    memcmp(metrics->data + metrics->length - strlen(end), end, strlen(end)))
		driver_fail("metrics without an end");
	for (const char *line = metrics->data; *line; line = strchr(line, '\n') + 1) {
		const char *value = (const char *)memrchr(line, ' ', strcspn(line, "\n"));

		if (*line != '#' && (!value || value[1] < '0' || value[1] > '9'))
			driver_fail("a metric without a number, or a negative one");
	}
}

static void check_lines(const struct box_header *header)
{
	struct laws_sums sums;

	if (!fresh_writes_lines())
		return;
	laws_add_up(fresh_box(), false, &sums);
	if (fresh_lines_missing())
		driver_fail("lines are neither written nor counted as dropped");
	if (!header->dropped[BOX_DROP_NO_KEY] &&
	    header->json_lines + header->dropped[BOX_DROP_JSON] != sums.ops + sums.group_ops)
		driver_fail(laws_say("%llu lines, %llu dropped of %llu operations and %llu groups",
		                     (laws_number)header->json_lines,
		                     (laws_number)header->dropped[BOX_DROP_JSON],
		                     (laws_number)sums.ops, (laws_number)sums.group_ops));
}

static void check(void)
{
	struct laws_sums sums;
	const char *wrong = fresh_box() ? laws_broken(fresh_box(), &run.told, &sums) : NULL;

	for (unsigned i = 0; i < run.comm_count && !wrong; i++) {
		uint32_t generation;
		unsigned index = handle_context_comm(run.comms[i].context, &generation);

		if (driver_has_record(run.comms[i].context))
			wrong = laws_of_record(fresh_box(), &sums, index, run.comms[i].ops);
	}
	if (wrong)
		driver_fail(wrong);
}

static void begin_anew(const uint8_t *data, size_t size)
{
	fresh_inspector();
	memset(&run, 0, sizeof(run));
	run.in = (struct bytes){ data, data + size };
	run.api = 1 + bytes_u8(&run.in) % CALLS_VERSIONS;
	still_now_ns = 1000 * SECOND_NS;
	still_step_ns = 20;
	still_cpu_ns = 1000;
	choose_environment();
}

static char folder[] = "/dev/shm/nccl-inspector-fuzz.XXXXXX";

static void remove_files(void)
{
	DIR *dir = opendir(folder);

	for (struct dirent *entry; dir && (entry = readdir(dir));)
		if (entry->d_name[0] != '.')
			unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void remove_folder(void)
{
	remove_files();
	rmdir(folder);
}

/* Its files go to a folder in memory. */
int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	if (!mkdtemp(folder))
		driver_fail("no folder for its files");
	setenv("NCCL_INSPECTOR_DUMP_DIR", folder, 1);
	atexit(remove_folder);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	begin_anew(data, size);
	while (run.in.at < run.in.end)
		PICK(actions, bytes_u8(&run.in))();
	check();
	fresh_rounds(5 * SECOND_NS);
	check();
	if (fresh_box()) {
		check_metrics(fresh_metrics());
		check_lines(fresh_box()->header);
	}
	remove_files();
	return 0;
}
