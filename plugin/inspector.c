/* SPDX-License-Identifier: Apache-2.0 */
#include "inspector.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ask/mask.h"
#include "base/clock.h"
#include "base/directory.h"
#include "base/log2.h"
#include "beat/beat.h"
#include "box/identity.h"
#include "hot/follow.h"
#include "hot/trace.h"
#include "json/writer.h"
#include "nccl/log.h"
#include "upkeep/comms.h"

#define relaxed memory_order_relaxed
#define FINALIZE_WAIT_NS 90000000ull /* of the 100 ms that it may take */

/* Somebody else's bits in NCCL's mask bring events even when nothing was set up. */
struct track inspector_track = { .fast_ops = all_free_ops };
struct net inspector_net;
struct hosttime inspector_hosttime;

static struct {
	/* Of all below, and of communicators and keys while they are folded. */
	pthread_mutex_t lock;
	bool tried, ready;
	pid_t pid;     /* whose box it is: a forked child must leave it alone */
	unsigned live; /* communicators, those without a record too */
	/* This is a child: another thread of the parent may have held the lock. */
	_Atomic bool forked;
	struct { /* of control.library */
		abi_logger logger;
		unsigned api;
	} library[MASK_LIBRARIES];
	uint8_t library_of[BOX_LIVE_COMMS];
	struct log log;
	struct config config;
	struct box box;
	struct mask mask;
	struct beat beat;
	bool json_ready;
	struct jsonwriter json;
} self = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* For threads that do not hold the lock. */
static void say(const char *message)
{
	log_say(&self.log, message);
}

/* For those that do: say_kept must follow. */
static void keep(const char *message)
{
	log_keep(&self.log, message);
}

static void say_kept(void)
{
	char message[LOG_BYTES];
	bool any = true;

	while (any) {
		pthread_mutex_lock(&self.lock);
		any = log_take(&self.log, message);
		pthread_mutex_unlock(&self.lock);
		if (any)
			say(message);
	}
}

static void after_fork_in_child(void)
{
	atomic_store(&self.forked, true);
	track_silence(&inspector_track);
	box_leave(&self.box);
}

/* exit() without ncclCommDestroy, as many applications do it: in order, not killed. */
__attribute__((destructor)) static void at_exit(void)
{
	if (!self.ready || atomic_load(&self.forked) || self.pid != getpid())
		return;
	if (atomic_load(&self.box.header->state) == BOX_LIVE)
		box_set_state(&self.box, BOX_EXITED);
	uint64_t due_ns = clock_ns(CLOCK_MONOTONIC) + FINALIZE_WAIT_NS;

	beat_close(&self.beat, due_ns);
	if (self.json_ready)
		jsonwriter_close(&self.json, due_ns);
}

static const char *get_environment(const char *name)
{
	return getenv(name);
}

/* False when there is nowhere to write anything. A directory of the user's own is made and opened
 * by the threads that write there: it may be on a file system that hangs. */
static bool find_dir(struct descriptor *dir)
{
	struct config *config = &self.config;
	char message[512];

	dir->fd = -1;
	if (config->make_dir) {
		directory_absolute(config->dir, sizeof(config->dir));
		return true;
	}
	if (descriptor_take(dir, open(config->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)))
		return true;
	snprintf(message, sizeof(message), "%.400s: %s: %s", config->dir, strerror(errno),
	         config->json ? "there will be JSON lines only" : "nothing is measured");
	keep(message);
	return config->json;
}

/* The box is for Slurm's report; in a directory of the user's own nobody would ever take it
 * away. */
static bool make_box(int dir_fd)
{
	char message[512];
	int file_error = 0;

	if (box_open(&self.box, self.config.make_dir ? -1 : dir_fd, self.config.step,
	             &file_error)) {
		keep("no memory for measurements: nothing is measured");
		return false;
	}
	if (file_error) {
		snprintf(message, sizeof(message),
		         "%.400s: %s: the report will not have this process", self.config.dir,
		         strerror(-file_error));
		keep(message);
	}
	return true;
}

static void set_up_json(void)
{
	if (jsonwriter_open(&self.json, &self.config, &self.box, keep)) {
		keep("no memory for JSON lines: there will be none");
		return;
	}
	self.json.log = say; /* its thread does not hold the lock */
	self.json_ready = true;
	inspector_track.json = &self.json.ring;
	if (self.config.verbose)
		track_trace(&inspector_track, trace_open(BOX_OPS));
}

/* Each interface gets the bits that it knows. Asking for an operation brings the calls around
 * it. */
static int wanted_events(unsigned api)
{
	/* What a rank sends to itself must be known: hot/clockmix.h. */
	bool needs_p2p = api >= 3 && api <= 6;

	return ABI_COLL | (self.config.p2p || needs_p2p ? ABI_P2P : 0) |
	       (api >= 3 ? ABI_KERNEL_CH : 0) | (api >= 6 ? ABI_CE_COLL : 0) |
	       (api >= 7 && self.config.phases ? ABI_KERNEL_PHASE : 0) |
	       net_events(&inspector_net) | hosttime_events(&inspector_hosttime, api);
}

/* Under the lock. */
static void ask_anew(void)
{
	for (unsigned i = 0; i < MASK_LIBRARIES; i++)
		mask_want(&self.mask, i, wanted_events(self.library[i].api));
}

static void keep_refused(void)
{
	char message[LOG_BYTES];

	if (!*self.config.refused)
		return;
	snprintf(message, sizeof(message), "wrong value, the default is used: %s",
	         self.config.refused);
	keep(message);
}

/* Once in the life of the process. */
static void set_up(const struct inspector_comm *comm)
{
	struct descriptor *dir = &self.beat.dir;

	self.tried = true;
	config_load(&self.config, get_environment);
	self.log.job = self.config.job;
	keep_refused();
	if (!self.config.enabled)
		return;
	self.pid = getpid();
	log2_init();
	if (!find_dir(dir))
		return;
	if (!make_box(dir->fd)) {
		descriptor_close(dir);
		return;
	}
	identity_fill(self.box.header, &self.config, comm->api, comm->caller);
	track_init(&inspector_track, &self.box, self.box.header->clock.ns_per_tick_q32,
	           &(struct track_options){ .p2p = self.config.p2p,
	                                    .host_time = self.config.host_time,
	                                    .api = (uint8_t)comm->api,
	                                    .timing = (enum box_timing)self.box.header->timing });
	samples_init(&self.beat.samples, &inspector_track);
	mask_init(&self.mask, &self.config, &inspector_track);
	if (net_init(&inspector_net, &inspector_track, self.config.net, comm->api))
		keep("no memory for network detail: it is not taken");
	inspector_hosttime.track = &inspector_track;
	self.beat.box = &self.box;
	self.beat.mask = &self.mask;
	self.beat.track = &inspector_track;
	self.beat.config = &self.config;
	self.beat.tables = &self.lock;
	self.beat.log = say;
	self.beat.net = &inspector_net;
	self.beat.ask_anew = ask_anew;
	self.beat.prom.api = comm->api;
	beat_init(&self.beat);
	if (self.config.json)
		set_up_json();
	pthread_atfork(NULL, NULL, after_fork_in_child);
	self.ready = true;
}

/* While the communicator lives, and before the first operation that shall find it known. */
static void tell_json(const void *context, bool unnamed)
{
	uint32_t generation;
	unsigned index = handle_context_comm(context, &generation);

	if (index == UINT32_MAX)
		return;
	const struct box_comm *comm = &self.box.comms[index];

	jsonwriter_add_comm(&self.json, &(struct json_comm_fields){
					    .comm = index,
					    .generation = generation,
					    .id = comm->id,
					    .name = comm->name,
					    .nranks = comm->nranks,
					    .nnodes = comm->nnodes,
					    .rank = comm->rank,
					    .unnamed = unnamed,
					    .gpu_uuid = self.box.header->gpu[comm->gpu].uuid });
}

void inspector_named(const void *context)
{
	if (self.json_ready)
		tell_json(context, false);
}

static void start_json(const void *context, unsigned api)
{
	tell_json(context, api <= 3);
	if (jsonwriter_start(&self.json))
		keep("no thread for JSON lines: there will be none");
}

static void start_threads(const void *context, unsigned api)
{
	if (thread_start(&self.beat.thread))
		keep("no thread for metrics: only the report will have this process");
	if (self.json_ready)
		start_json(context, api);
}

static bool is_live(unsigned index, uint32_t generation)
{
	const struct box_comm *comm = &self.box.comms[index];

	return atomic_load(&comm->state) == BOX_COMM_LIVE &&
	       atomic_load(&comm->generation) == generation;
}

/* The library of a communicator, as begin() has kept it: with its record, or in the context of one
 * that has none. MASK_LIBRARIES: it is none of ours, or no more. */
static unsigned library_of(const void *context)
{
	uint32_t generation;
	unsigned index = handle_context_comm(context, &generation), library = MASK_LIBRARIES;

	if (index != UINT32_MAX && is_live(index, generation))
		library = self.library_of[index];
	else if (handle_context_beyond() == handle_of(handle_bits(context) & 0xffff) &&
	         generation < MASK_LIBRARIES)
		library = generation;
	return library < MASK_LIBRARIES && self.mask.library[library].comms ? library
	                                                                    : MASK_LIBRARIES;
}

static void *keep_library(void *context, unsigned library)
{
	uint32_t generation;
	unsigned index = handle_context_comm(context, &generation);

	if (index == UINT32_MAX)
		return handle_of(handle_bits(context) | (uint64_t)library << 16);
	self.library_of[index] = (uint8_t)library;
	return context;
}

/* One of a GPU that has no place in the header has no record: another one's would have its
 * figures. */
static void *add_comm(const struct inspector_comm *comm)
{
	struct comm_fields fields = comm->fields;

	fields.gpu = identity_find_gpu(self.box.header);
	if (fields.gpu < BOX_GPUS)
		return comms_add(&inspector_track, &fields);
	atomic_fetch_add(&self.box.header->comms_created, 1);
	return handle_context_beyond();
}

/* Under the lock. NULL: nothing of this communicator can be measured. */
static void *begin(const struct inspector_comm *comm, int *mask)
{
	unsigned library =
	    mask_begin(&self.mask, mask, wanted_events(comm->api), clock_ns(CLOCK_MONOTONIC));
	void *context;

	if (library == MASK_LIBRARIES) {
		keep("more than one NCCL in this process, and too many of them: this one is not "
		     "measured");
		return NULL;
	}
	self.library[library].logger = comm->logger;
	self.library[library].api = comm->api;
	atomic_store(&self.log.logger, comm->logger);
	context = keep_library(add_comm(comm), library);
	if (!self.live++)
		net_begin(&inspector_net);
	atomic_store(&self.box.header->state, BOX_LIVE);
	/* The thread of a process that is silent for now sees when that is over. */
	if (mask_is_denied(&self.mask))
		box_snapshot(&self.box);
	else
		start_threads(context, comm->api);
	return context;
}

void inspector_init(const struct inspector_comm *comm, void **context, int *mask)
{
	char message[MASK_MESSAGE_BYTES] = "";

	*context = NULL;
	if (atomic_load(&self.forked)) {
		__atomic_store_n(mask, 0, __ATOMIC_RELAXED);
		return;
	}
	pthread_mutex_lock(&self.lock);
	if (!self.tried)
		set_up(comm);
	if (self.ready && self.pid == getpid()) {
		*context = begin(comm, mask);
		mask_take_message(&self.mask, message);
	} else {
		atomic_store(&self.log.logger, comm->logger);
	}
	if (!*context)
		__atomic_store_n(mask, 0, __ATOMIC_RELAXED);
	if (*message)
		keep(message);
	pthread_mutex_unlock(&self.lock);
	say_kept();
}

/* Under the lock. Of the last one of the process: libnccl may go, and the threads with it. */
static void end_all(void)
{
	atomic_store(&self.box.header->state, BOX_FINALIZED);
	/* There is no thread to write a box that is not in memory. */
	if (mask_is_denied(&self.mask))
		box_snapshot(&self.box);
	/* Under the lock: a communicator that comes now must find the thread told to stop, and
	 * start it. */
	thread_ask_to_stop(&self.beat.thread);
	if (self.json_ready)
		thread_ask_to_stop(&self.json.thread);
}

/* Under the lock. Returns whether that libnccl may go now, and its mask and logger with it. */
static bool end(void *context)
{
	unsigned library = library_of(context);
	bool is_last;

	if (library == MASK_LIBRARIES)
		return false;
	comms_remove(&inspector_track, context);
	is_last = !mask_end(&self.mask, library, clock_ns(CLOCK_MONOTONIC));
	if (is_last)
		atomic_store(&self.log.logger,
		             self.live > 1 ? self.library[self.mask.current].logger : NULL);
	if (--self.live == 0)
		end_all();
	return is_last;
}

void inspector_finalize(void *context)
{
	bool may_go = false, is_over = false;

	if (atomic_load(&self.forked))
		return;
	pthread_mutex_lock(&self.lock);
	if (self.ready && self.pid == getpid()) {
		may_go = end(context);
		is_over = may_go && !self.live;
	}
	pthread_mutex_unlock(&self.lock);
	if (!may_go)
		return;
	uint64_t due_ns = clock_ns(CLOCK_MONOTONIC) + FINALIZE_WAIT_NS;

	if (is_over)
		thread_wait(&self.beat.thread, due_ns);
	if (is_over && self.json_ready)
		thread_wait(&self.json.thread, due_ns);
	log_wait(&self.log, due_ns);
}
