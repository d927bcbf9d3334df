/* SPDX-License-Identifier: Apache-2.0 */
#include "inspector.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "gpu.h"
#include "jsonwriter.h"
#include "log2.h"
#include "makedir.h"
#include "writer.h"

#define relaxed memory_order_relaxed
#define FINALIZE_WAIT_NS 90000000ull /* of the 100 ms that it may take */

struct track inspector_track;
struct net inspector_net;

static struct {
	pthread_mutex_t lock; /* of all below, and of communicators and keys while they are folded */
	bool tried, ready;
	pid_t pid; /* whose box it is: a forked child must leave it alone */
	unsigned live;              /* communicators, those without a record too */
	_Atomic bool forked;        /* this is a child: another thread of the parent may have held the lock */
	_Atomic(abi_logger) logger; /* NULL while libnccl may be gone */
	struct config config;
	struct box box;
	struct control control;
	struct writer writer;
	bool json_ready;
	struct jsonwriter json;
} self = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void log_line(const char *message)
{
	abi_logger logger = atomic_load(&self.logger);

	if (logger)
		/* Not WARN: NCCL keeps the last warning as the reason of the next failure. */
		logger(ABI_LOG_INFO, ABI_LOG_INIT, "nccl-inspector", 0, "nccl-inspector: job %s: %s",
		       self.config.job, message);
}

static void after_fork_in_child(void)
{
	atomic_store(&self.forked, true);
	track_silence(&inspector_track);
}

/* exit() without ncclCommDestroy, as many applications do it: in order, not killed. */
__attribute__((destructor)) static void at_exit(void)
{
	if (!self.ready || atomic_load(&self.forked) || self.pid != getpid())
		return;
	if (atomic_load(&self.box.header->state) == BOX_LIVE)
		box_set_state(&self.box, BOX_EXITED);
	uint64_t due_ns = clock_ns(CLOCK_MONOTONIC) + FINALIZE_WAIT_NS;

	writer_close(&self.writer, due_ns);
	if (self.json_ready)
		jsonwriter_close(&self.json, due_ns);
}

static const char *get_environment(const char *name)
{
	return getenv(name);
}

static int open_dir(const struct config *config)
{
	int fd;

	if (config->make_dir)
		return makedir_open(config->dir);
	fd = open(config->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -errno : box_move_fd(fd);
}

/* Version of the libnccl that called us; 0 when it does not tell. */
static uint32_t nccl_version(void *address)
{
	int (*get_version)(int *) = NULL;
	void *library = NULL;
	Dl_info info;
	int version = 0;

	if (dladdr(address, &info) && info.dli_fname)
		library = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
	if (!library)
		library = dlopen(NULL, RTLD_LAZY);
	if (library)
		get_version = (int (*)(int *))dlsym(library, "ncclGetVersion");
	if (get_version && get_version(&version) != 0)
		version = 0;
	if (library)
		dlclose(library);
	return version > 0 ? (uint32_t)version : 0;
}

static void fill_header(const struct inspector_comm *comm)
{
	struct box_header *header = self.box.header;
	const struct config *config = &self.config;

	header->pid = (uint32_t)self.pid;
	header->uid = (uint32_t)getuid();
	header->job_id = config->job_id;
	header->step_id = config->step_id;
	header->procid = config->procid;
	header->localid = config->localid;
	header->array_job_id = config->array_job_id;
	header->array_task_id = config->array_task_id;
	header->api_version = comm->api;
	header->timing = comm->api <= 2 ? BOX_TIMING_NONE : comm->api == 3 ? BOX_TIMING_CPU : BOX_TIMING_GPU;
	header->nccl_version = nccl_version(comm->caller);
	config_copy_text(header->plugin_version, sizeof(header->plugin_version), NCCL_INSPECTOR_VERSION);
	config_copy_text(header->node, sizeof(header->node), config->node);
	header->clock.ns_per_tick_q32 = clock_calibrate();
	header->clock.tick0 = clock_ticks();
	header->clock.real0_ns = clock_ns(CLOCK_REALTIME);
	atomic_store(&header->beat_tick, header->clock.tick0);
	atomic_store(&header->beat_real_ns, header->clock.real0_ns);
}

/* False when there is nowhere to write anything. The directory of the JSON lines is opened by their thread: it may be
 * on a file system that hangs. */
static bool find_dir(int *dir_fd)
{
	const struct config *config = &self.config;
	char message[512];
	int fd;

	*dir_fd = -1;
	if (config->make_dir && !config->prom)
		return true;
	fd = open_dir(config);
	if (fd >= 0) {
		*dir_fd = fd;
		return true;
	}
	snprintf(message, sizeof(message), "%.400s: %s: %s", config->dir, strerror(-fd),
		 config->json ? "there will be JSON lines only" : "nothing is measured");
	log_line(message);
	return config->json;
}

/* The box is for Slurm's report; in a directory of the user's own nobody would ever take it away. */
static bool make_box(int dir_fd)
{
	char message[512];
	int file_error = 0;

	if (box_open(&self.box, self.config.make_dir ? -1 : dir_fd, self.config.step, &file_error)) {
		log_line("no memory for measurements: nothing is measured");
		return false;
	}
	if (file_error) {
		snprintf(message, sizeof(message), "%.400s: %s: the report will not have this process",
			 self.config.dir, strerror(-file_error));
		log_line(message);
	}
	return true;
}

static void set_up_json(void)
{
	if (jsonwriter_open(&self.json, &self.config, &self.box, log_line)) {
		log_line("no memory for JSON lines: there will be none");
		return;
	}
	self.json_ready = true;
	inspector_track.json = &self.json.ring;
	if (self.config.verbose)
		track_trace(&inspector_track, trace_open(BOX_OPS));
}

/* Each interface gets the bits that it knows. Asking for an operation brings the calls around it. */
static int wanted_events(unsigned api)
{
	return ABI_COLL | (self.config.p2p ? ABI_P2P : 0) | (api >= 3 ? ABI_KERNEL_CH : 0) |
	       (api >= 6 ? ABI_CE_COLL : 0) | (api >= 7 && self.config.phases ? ABI_KERNEL_PHASE : 0) |
	       net_events(&inspector_net);
}

/* Under the lock. */
static void ask_anew(void)
{
	control_want(&self.control, wanted_events(self.box.header->api_version));
}

/* Once in the life of the process. */
static void set_up(const struct inspector_comm *comm)
{
	int dir_fd;

	self.tried = true;
	config_load(&self.config, get_environment);
	if (!self.config.enabled)
		return;
	self.pid = getpid();
	log2_init();
	if (!find_dir(&dir_fd))
		return;
	if (!make_box(dir_fd)) {
		if (dir_fd >= 0)
			close(dir_fd);
		return;
	}
	fill_header(comm);
	track_init(&inspector_track, &self.box, self.box.header->clock.ns_per_tick_q32,
		   &(struct track_options){ .p2p = self.config.p2p,
					    .timing = (enum box_timing)self.box.header->timing });
	control_init(&self.control, &self.config, &inspector_track);
	if (net_init(&inspector_net, &inspector_track, self.config.net, comm->api))
		log_line("no memory for network detail: it is not taken");
	self.writer.box = &self.box;
	self.writer.control = &self.control;
	self.writer.track = &inspector_track;
	self.writer.config = &self.config;
	self.writer.tables = &self.lock;
	self.writer.dir_fd = dir_fd;
	self.writer.log = log_line;
	self.writer.net = &inspector_net;
	self.writer.ask_anew = ask_anew;
	self.writer.expo.api = comm->api;
	writer_init(&self.writer);
	if (self.config.json)
		set_up_json();
	pthread_atfork(NULL, NULL, after_fork_in_child);
	self.ready = true;
}

/* Index of the calling thread's GPU in the header, a new entry if need be. */
static uint32_t find_gpu(void)
{
	struct box_header *header = self.box.header;
	struct box_gpu gpu;

	gpu_identify(&gpu);
	for (unsigned i = 0; i < BOX_GPUS; i++) {
		if (header->gpu[i].used && !strcmp(header->gpu[i].uuid, gpu.uuid))
			return i;
		if (header->gpu[i].used)
			continue;
		header->gpu[i] = gpu;
		header->gpu[i].used = 1;
		return i;
	}
	return BOX_GPUS - 1;
}

/* Before NCCL has the context: every operation finds its communicator known. */
static void start_json(const void *context, const struct comm_words *words, unsigned api)
{
	uint32_t generation;
	unsigned comm = handle_context_comm(context, &generation);
	const struct json_comm_words full = {
		.comm = comm,
		.generation = generation,
		.id = words->id,
		.name = words->name,
		.nranks = words->nranks,
		.nnodes = words->nnodes,
		.rank = words->rank,
		.unnamed = api <= 3,
		.gpu_uuid = self.box.header->gpu[words->gpu].uuid,
	};

	if (comm != UINT32_MAX)
		jsonwriter_add_comm(&self.json, &full);
	if (jsonwriter_start(&self.json))
		log_line("no thread for JSON lines: there will be none");
}

static void start_threads(const void *context, const struct comm_words *words, unsigned api)
{
	if (worker_start(&self.writer.worker))
		log_line("no thread for metrics: only the report will have this process");
	if (self.json_ready)
		start_json(context, words, api);
}

static void *begin(const struct inspector_comm *comm, int *mask)
{
	struct comm_words words = comm->words;
	void *context;

	words.gpu = find_gpu();
	context = comms_add(&inspector_track, &words);
	if (!self.live++)
		net_begin(&inspector_net);
	atomic_store(&self.box.header->state, BOX_LIVE);
	control_begin(&self.control, mask, wanted_events(comm->api), clock_ns(CLOCK_MONOTONIC));
	/* The thread of a process that is silent for now sees when that is over. */
	if (control_is_denied(&self.control))
		box_snapshot(&self.box);
	else
		start_threads(context, &words, comm->api);
	return context;
}

void inspector_init(const struct inspector_comm *comm, void **context, int *mask)
{
	char message[CONTROL_MESSAGE_BYTES] = "";

	*context = NULL;
	if (atomic_load(&self.forked)) {
		__atomic_store_n(mask, 0, __ATOMIC_RELAXED);
		return;
	}
	pthread_mutex_lock(&self.lock);
	atomic_store(&self.logger, comm->logger);
	if (!self.tried)
		set_up(comm);
	if (self.ready && self.pid == getpid()) {
		*context = begin(comm, mask);
		control_take_message(&self.control, message);
	} else {
		__atomic_store_n(mask, 0, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&self.lock);
	if (*message)
		log_line(message);
}

void inspector_finalize(void *context)
{
	bool last = false;

	if (atomic_load(&self.forked))
		return;
	pthread_mutex_lock(&self.lock);
	if (self.ready && self.pid == getpid()) {
		comms_remove(&inspector_track, context);
		last = context && self.live && --self.live == 0;
		if (last) {
			atomic_store(&self.box.header->state, BOX_FINALIZED);
			atomic_store(&self.logger, NULL);
			/* libnccl may go now, and its mask with it */
			control_end(&self.control, clock_ns(CLOCK_MONOTONIC));
			/* Under the lock: a communicator that comes now must find the thread told to stop, and start it. */
			worker_ask_to_stop(&self.writer.worker);
			if (self.json_ready)
				worker_ask_to_stop(&self.json.worker);
		}
	}
	pthread_mutex_unlock(&self.lock);
	if (!last)
		return;
	uint64_t due_ns = clock_ns(CLOCK_MONOTONIC) + FINALIZE_WAIT_NS;

	worker_wait(&self.writer.worker, due_ns);
	if (self.json_ready)
		worker_wait(&self.json.worker, due_ns);
}
