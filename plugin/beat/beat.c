/* SPDX-License-Identifier: Apache-2.0 */
#include "beat/beat.h"

#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/directory.h"
#include "prom/file.h"

#define ROUND_NS 1000000000ull
#define ROUND_SPREAD_NS 125000000ull
#define DRAIN_MIN_NS 20000000ull  /* 100,000 operations a second take a quarter of the room */
#define DRAIN_MAX_NS 250000000ull /* and if they come all at once after a pause, all of it at 32,000 */
#define SNAPSHOT_NS 30000000000ull /* of a box that is not on tmpfs, where there is no interval */

static void prom_name(const struct writer *writer, unsigned gpu, char *name, size_t room)
{
	const char *uuid = writer->box->header->gpu[gpu].uuid;

	snprintf(name, room, "nccl_inspector_metrics_%s_%s.prom", uuid[0] ? uuid : "unknown",
		 box_process(writer->box));
}

static void log_failure(struct writer *writer, const char *name, int error)
{
	char message[320];

	if (!writer->failing && writer->log) {
		snprintf(message, sizeof(message), "cannot write %.200s: %s; its metrics are withdrawn until it can",
			 name, strerror(-error));
		writer->log(message);
	}
	writer->failing = true;
}

/* The directory, opened anew where the application has closed it; -1: none. The user's own is made and opened here, by
 * the thread: it may be on a file system that hangs. */
static int open_dir(struct writer *writer)
{
	struct file_identity before = writer->dir.identity;
	const char *path = writer->config->dir;
	struct file_found found;
	int fd = descriptor_fd(&writer->dir, NULL);

	if (fd >= 0)
		return fd;
	fd = writer->config->make_dir ? makedir_open(path) : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (!descriptor_take(&writer->dir, fd) && writer->config->make_dir)
		log_failure(writer, path, fd < 0 ? fd : -EIO);
	/* The job's directory is what it was when the process began, or gone. */
	if (!writer->config->make_dir && descriptor_fd(&writer->dir, &found) >= 0 && !file_is_same(&before, &found)) {
		descriptor_close(&writer->dir);
		writer->dir.identity = before;
	}
	return writer->dir.fd;
}

static void unpublish(struct writer *writer)
{
	uint32_t published = atomic_exchange(&writer->published, 0);
	int dir_fd = published ? open_dir(writer) : -1;
	char name[192];

	for (unsigned gpu = 0; gpu < BOX_GPUS; gpu++) {
		if (!(published & 1u << gpu))
			continue;
		prom_name(writer, gpu, name, sizeof(name));
		promfile_remove(dir_fd, name);
	}
}

/* Without an interval and without Slurm the metrics are written once, at the end, and stay: the directory is the user's
 * own. */
static bool writes_at_end(const struct writer *writer)
{
	return writer->config->prom && writer->config->make_dir && !writer->config->interval_us;
}

void writer_close(struct writer *writer, uint64_t due_ns)
{
	worker_close(&writer->worker, due_ns); /* it withdraws the files */
	atomic_store(&writer->closing, true);
	if (!writer->config->make_dir) /* the user's own directory is perhaps what the thread is stuck at */
		unpublish(writer);
}

static void publish_gpu(struct writer *writer, unsigned gpu)
{
	int error, dir_fd = open_dir(writer);
	char name[192];

	prom_name(writer, gpu, name, sizeof(name));
	if (dir_fd < 0)
		error = -ENOENT;
	else if (writer->text[gpu].failed)
		error = -ENOMEM;
	else
		error = promfile_replace(dir_fd, name, &writer->text[gpu], !writer->config->make_dir);
	if (!error) {
		atomic_fetch_or(&writer->published, 1u << gpu);
		writer->failing = false;
	} else {
		/* What cannot be renewed would be a stale number: better none. */
		promfile_remove(dir_fd, name);
		atomic_fetch_and(&writer->published, ~(1u << gpu));
		log_failure(writer, name, error);
	}
	if (atomic_load(&writer->closing)) /* writer_close may have come before the file */
		promfile_remove(dir_fd, name);
}

/* Texts of all GPUs under one hold of the lock: they are of the same window and the same communicators. */
static void publish(struct writer *writer)
{
	uint32_t gpus = 0;

	if (open_dir(writer) < 0)
		return;
	pthread_mutex_lock(writer->tables);
	sweep_count(writer->track);
	expo_window(&writer->expo, clock_ticks(), writer->track->ns_per_tick_q32);
	for (unsigned gpu = 0; gpu < BOX_GPUS; gpu++) {
		if (!writer->box->header->gpu[gpu].used)
			continue;
		gpus |= 1u << gpu;
		expo_prom_write(&writer->expo, gpu, &writer->text[gpu]);
	}
	pthread_mutex_unlock(writer->tables);
	for (unsigned gpu = 0; gpu < BOX_GPUS && !atomic_load(&writer->closing); gpu++)
		if (gpus & 1u << gpu)
			publish_gpu(writer, gpu);
}

static void beat(struct writer *writer)
{
	struct box_header *header = writer->box->header;
	uint64_t now = clock_ticks(), cpu_ns = worker_cpu_ns(&writer->worker);
	char message[CONTROL_MESSAGE_BYTES];

	writer->own_ns += cpu_ns;
	atomic_fetch_add(&header->self_ns, cpu_ns);
	atomic_store(&header->hot_ns, TRACK_HOT_SAMPLE * clock_ticks_to_ns(atomic_load(&writer->track->hot_ticks),
									   writer->track->ns_per_tick_q32));
	pthread_mutex_lock(writer->tables); /* nothing is folded while slots are looked at */
	sweep_round(&writer->sweep, writer->track, now);
	lines_round(&writer->lines, writer->box, clock_ns(CLOCK_REALTIME));
	control_round(writer->control, clock_ns(CLOCK_MONOTONIC), writer->own_ns);
	if (net_round(writer->net, now))
		writer->ask_anew();
	control_take_message(writer->control, message);
	pthread_mutex_unlock(writer->tables);
	atomic_store(&header->beat_tick, now);
	atomic_store(&header->beat_real_ns, clock_ns(CLOCK_REALTIME));
	if (control_is_silent(writer->control))
		unpublish(writer);
	if (*message)
		writer->log(message);
}

/* Takes what is over from NCCL's threads before there are too many. Returns how long to wait for the next time: until a
 * quarter of the room is used, if it goes on like this. */
static uint64_t drain(struct writer *writer, uint64_t waited_ns)
{
	unsigned taken;

	pthread_mutex_lock(writer->tables);
	taken = samples_round(&writer->samples);
	pthread_mutex_unlock(writer->tables);
	uint64_t wait_ns = waited_ns * (ENDS_CHUNKS * ENDS_CHUNK / 4) / (taken + 1u);

	return wait_ns < DRAIN_MIN_NS ? DRAIN_MIN_NS : wait_ns > DRAIN_MAX_NS ? DRAIN_MAX_NS : wait_ns;
}

static void end(struct writer *writer)
{
	if (writes_at_end(writer) && !control_is_silent(writer->control)) {
		publish(writer);
		atomic_store(&writer->published, 0); /* for nobody to take away */
	} else {
		unpublish(writer);
	}
}

/* Not always the same: a program whose steps take as long would be looked at in the same place of each. */
static uint64_t round_length(uint64_t now)
{
	return ROUND_NS - (now * 0x9e3779b97f4a7c15ull >> 32) * ROUND_SPREAD_NS / UINT32_MAX;
}

static void *thread_main(void *argument)
{
	struct writer *writer = argument;
	uint64_t interval_ns = (uint64_t)writer->config->interval_us * 1000;
	bool prom = writer->config->prom && interval_ns;
	uint64_t period_ns = interval_ns ? interval_ns : SNAPSHOT_NS;
	uint64_t next_beat = clock_ns(CLOCK_MONOTONIC) + ROUND_NS;
	uint64_t next_write = clock_ns(CLOCK_MONOTONIC) + period_ns;
	uint64_t drained = clock_ns(CLOCK_MONOTONIC), next_drain = drained + DRAIN_MIN_NS;

	/* The application's locale may write a comma into numbers. */
	uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
	if (writer->config->prom)
		open_dir(writer); /* or the user hears of it at once */
	for (;;) {
		uint64_t due = next_write < next_beat ? next_write : next_beat;
		bool stop = worker_sleep(&writer->worker, next_drain < due ? next_drain : due);
		uint64_t now = clock_ns(CLOCK_MONOTONIC);

		if (stop || now >= next_beat) {
			if (stop)
				beat(writer); /* what waited for one more round is settled in the next */
			beat(writer);
			next_beat = now + round_length(now);
		}
		if (stop || now >= next_drain) { /* after what the beat has ended */
			next_drain = now + drain(writer, now - drained);
			drained = now;
		}
		if (stop || now >= next_write)
			box_snapshot(writer->box);
		if (stop) {
			end(writer);
			if (worker_end(&writer->worker))
				return NULL;
		} else if (now >= next_write) {
			if (prom && !control_is_silent(writer->control))
				publish(writer);
			/* On the grid of the period, whatever a round took. */
			next_write += (1 + (now - next_write) / period_ns) * period_ns;
		}
	}
}

void writer_init(struct writer *writer)
{
	writer->expo.box = writer->box;
	writer->expo.config = writer->config;
	worker_init(&writer->worker, thread_main, writer);
}
