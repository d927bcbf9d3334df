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
#include "net/proxy_round.h"
#include "prom/file.h"
#include "prom/text_of_gpu.h"

#define ROUND_NS 1000000000ull
#define ROUND_SPREAD_NS 125000000ull
/* With 100,000 operations a second a quarter of the room is used from one drain to the next; if
 * they come all at once after a pause, 32,000 a second use all of it. */
#define DRAIN_MIN_NS 20000000ull
#define DRAIN_MAX_NS 250000000ull
#define SNAPSHOT_NS 30000000000ull /* of a box that is not on tmpfs, where there is no interval */

static void prom_name(const struct beat *beat, unsigned gpu, char *name, size_t room)
{
	const char *uuid = beat->box->header->gpu[gpu].uuid;

	snprintf(name, room, "nccl_inspector_metrics_%s_%s.prom", uuid[0] ? uuid : "unknown",
	         box_process(beat->box));
}

static void log_failure(struct beat *beat, const char *name, int error)
{
	char message[320];

	if (!beat->failing && beat->log) {
		snprintf(message, sizeof(message),
		         "cannot write %.200s: %s; its metrics are withdrawn until it can", name,
		         strerror(-error));
		beat->log(message);
	}
	beat->failing = true;
}

/* The directory, opened anew where the application has closed it; -1: none. The user's own is made
 * and opened here, by the thread: it may be on a file system that hangs. */
static int open_dir(struct beat *beat)
{
	struct file_identity before = beat->dir.identity;
	const char *path = beat->config->dir;
	struct file_found found;
	int fd = descriptor_fd(&beat->dir, NULL);

	if (fd >= 0)
		return fd;
	fd = beat->config->make_dir ? directory_open(path)
	                            : open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (!descriptor_take(&beat->dir, fd) && beat->config->make_dir)
		log_failure(beat, path, fd < 0 ? fd : -EIO);
	/* The job's directory is what it was when the process began, or gone. */
	if (!beat->config->make_dir && descriptor_fd(&beat->dir, &found) >= 0 &&
	    !file_is_same(&before, &found)) {
		descriptor_close(&beat->dir);
		beat->dir.identity = before;
	}
	return beat->dir.fd;
}

static void unpublish(struct beat *beat)
{
	uint32_t published = atomic_exchange(&beat->published, 0);
	int dir_fd = published ? open_dir(beat) : -1;
	char name[192];

	for (unsigned gpu = 0; gpu < BOX_GPUS; gpu++) {
		if (!(published & 1u << gpu))
			continue;
		prom_name(beat, gpu, name, sizeof(name));
		promfile_remove(dir_fd, name);
	}
}

/* Without an interval and without Slurm the metrics are written once, at the end, and stay: the
 * directory is the user's own. */
static bool writes_at_end(const struct beat *beat)
{
	return beat->config->prom && beat->config->make_dir && !beat->config->interval_us;
}

void beat_close(struct beat *beat, uint64_t due_ns)
{
	thread_close(&beat->thread, due_ns); /* it withdraws the files */
	atomic_store(&beat->closing, true);
	/* The user's own directory is perhaps what the thread is stuck at. */
	if (!beat->config->make_dir)
		unpublish(beat);
}

static void publish_gpu(struct beat *beat, unsigned gpu)
{
	int error, dir_fd = open_dir(beat);
	char name[192];

	prom_name(beat, gpu, name, sizeof(name));
	if (dir_fd < 0)
		error = -ENOENT;
	else if (beat->text[gpu].failed)
		error = -ENOMEM;
	else
		error = promfile_replace(dir_fd, name, &beat->text[gpu], !beat->config->make_dir);
	if (!error) {
		atomic_fetch_or(&beat->published, 1u << gpu);
		beat->failing = false;
	} else {
		/* What cannot be renewed would be a stale number: better none. */
		promfile_remove(dir_fd, name);
		atomic_fetch_and(&beat->published, ~(1u << gpu));
		log_failure(beat, name, error);
	}
	if (atomic_load(&beat->closing)) /* beat_close may have come before the file */
		promfile_remove(dir_fd, name);
}

/* Texts of all GPUs under one hold of the lock: they are of the same window and the same
 * communicators. */
static void publish(struct beat *beat)
{
	uint32_t gpus = 0;

	if (open_dir(beat) < 0)
		return;
	beat->prom.quiet_rate = quiet_rate(&beat->quiet, beat->box, clock_ns(CLOCK_MONOTONIC));
	pthread_mutex_lock(beat->tables);
	sweep_count(beat->track);
	prom_window(&beat->prom, clock_ticks(), beat->track->ns_per_tick_q32);
	for (unsigned gpu = 0; gpu < BOX_GPUS; gpu++) {
		if (!beat->box->header->gpu[gpu].used)
			continue;
		gpus |= 1u << gpu;
		prom_text_of_gpu(&beat->prom, gpu, &beat->text[gpu]);
	}
	pthread_mutex_unlock(beat->tables);
	for (unsigned gpu = 0; gpu < BOX_GPUS && !atomic_load(&beat->closing); gpu++)
		if (gpus & 1u << gpu)
			publish_gpu(beat, gpu);
}

static void one_beat(struct beat *beat)
{
	struct box_header *header = beat->box->header;
	uint64_t now = clock_ticks(), cpu_ns = thread_cpu_ns(&beat->thread);
	char message[MASK_MESSAGE_BYTES];

	beat->own_ns += cpu_ns;
	atomic_fetch_add(&header->self_ns, cpu_ns);
	atomic_store(&header->hot_ns,
	             TRACK_HOT_SAMPLE * clock_ticks_to_ns(atomic_load(&beat->track->hot_ticks),
	                                                  beat->track->ns_per_tick_q32));
	pthread_mutex_lock(beat->tables); /* nothing is folded while slots are looked at */
	sweep_round(&beat->sweep, beat->track, now);
	timeline_round(&beat->timeline, beat->box, clock_ns(CLOCK_REALTIME));
	mask_round(beat->mask, clock_ns(CLOCK_MONOTONIC), beat->own_ns);
	if (net_round(beat->net, now, beat->mask->budget.net_fewer))
		beat->ask_anew();
	mask_take_message(beat->mask, message);
	pthread_mutex_unlock(beat->tables);
	quiet_round(&beat->quiet, beat->box, clock_ns(CLOCK_MONOTONIC));
	atomic_store(&header->beat_tick, now);
	atomic_store(&header->beat_real_ns, clock_ns(CLOCK_REALTIME));
	if (mask_is_silent(beat->mask))
		unpublish(beat);
	if (*message)
		beat->log(message);
}

/* Takes what is over from NCCL's threads before there are too many. Returns how long to wait for
 * the next time: until a quarter of the room is used, if it goes on like this. */
static uint64_t drain(struct beat *beat, uint64_t waited_ns)
{
	unsigned taken;

	pthread_mutex_lock(beat->tables);
	taken = samples_round(&beat->samples);
	pthread_mutex_unlock(beat->tables);
	uint64_t wait_ns = waited_ns * (ENDS_CHUNKS * ENDS_CHUNK / 4) / (taken + 1u);

	return wait_ns < DRAIN_MIN_NS   ? DRAIN_MIN_NS
	       : wait_ns > DRAIN_MAX_NS ? DRAIN_MAX_NS
	                                : wait_ns;
}

static void end(struct beat *beat)
{
	if (writes_at_end(beat) && !mask_is_silent(beat->mask)) {
		publish(beat);
		atomic_store(&beat->published, 0); /* for nobody to take away */
	} else {
		unpublish(beat);
	}
}

/* Not always the same: a program whose steps take as long would be looked at in the same place of
 * each. */
static uint64_t round_length(uint64_t now)
{
	return ROUND_NS - (now * 0x9e3779b97f4a7c15ull >> 32) * ROUND_SPREAD_NS / UINT32_MAX;
}

static void *beat_main(void *argument)
{
	struct beat *beat = argument;
	uint64_t interval_ns = (uint64_t)beat->config->interval_us * 1000;
	bool prom = beat->config->prom && interval_ns;
	uint64_t period_ns = interval_ns ? interval_ns : SNAPSHOT_NS;
	uint64_t next_beat = clock_ns(CLOCK_MONOTONIC) + ROUND_NS;
	uint64_t next_write = clock_ns(CLOCK_MONOTONIC) + period_ns;
	uint64_t drained = clock_ns(CLOCK_MONOTONIC), next_drain = drained + DRAIN_MIN_NS;

	/* The application's locale may write a comma into numbers. */
	uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
	if (beat->config->prom)
		open_dir(beat); /* or the user hears of it at once */
	for (;;) {
		uint64_t due = next_write < next_beat ? next_write : next_beat;
		bool stop = thread_sleep(&beat->thread, next_drain < due ? next_drain : due);
		uint64_t now = clock_ns(CLOCK_MONOTONIC);

		if (stop || now >= next_beat) {
			if (stop)
				/* What waited for one more round is settled in the next. */
				one_beat(beat);
			one_beat(beat);
			next_beat = now + round_length(now);
		}
		if (stop || now >= next_drain) { /* after what the beat has ended */
			next_drain = now + drain(beat, now - drained);
			drained = now;
		}
		if (stop || now >= next_write)
			box_snapshot(beat->box);
		if (stop) {
			end(beat);
			if (thread_end(&beat->thread))
				return NULL;
		} else if (now >= next_write) {
			if (prom && !mask_is_silent(beat->mask))
				publish(beat);
			/* On the grid of the period, whatever a round took. */
			next_write += (1 + (now - next_write) / period_ns) * period_ns;
		}
	}
}

void beat_init(struct beat *beat)
{
	beat->prom.box = beat->box;
	beat->prom.config = beat->config;
	beat->prom.quiet_rate = QUIET_NONE;
	thread_init(&beat->thread, beat_main, beat);
}
