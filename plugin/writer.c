/* SPDX-License-Identifier: Apache-2.0 */
#include "writer.h"

#include <errno.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "clock.h"

#define ROUND_NS 1000000000ull
#define STACK_BYTES ((size_t)256 * 1024)
#define NICE 10
#define SNAPSHOT_NS 30000000000ull /* of a box that is not on tmpfs, where there is no interval */

static void prom_name(const struct writer *writer, unsigned gpu, char *name, size_t room)
{
	const char *uuid = writer->box->header->gpu[gpu].uuid;

	snprintf(name, room, "nccl_inspector_metrics_%s_%s.prom", uuid[0] ? uuid : "unknown",
		 box_process(writer->box));
}

static void unpublish(struct writer *writer)
{
	uint32_t published = atomic_exchange(&writer->published, 0);
	char name[192];

	for (unsigned gpu = 0; gpu < BOX_GPUS; gpu++) {
		if (!(published & 1u << gpu))
			continue;
		prom_name(writer, gpu, name, sizeof(name));
		unlinkat(writer->dir_fd, name, 0);
	}
}

void writer_close(struct writer *writer)
{
	atomic_store(&writer->closing, true);
	unpublish(writer);
}

static int write_all(int fd, const char *data, size_t length)
{
	while (length) {
		ssize_t n = write(fd, data, length);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n ? -errno : -EIO;
		data += n;
		length -= (size_t)n;
	}
	return 0;
}

/* Writes beside, then renames: a reader sees the whole old file or the whole new one. */
static int replace_file(int dir_fd, const char *name, const struct text *text)
{
	char beside[208];
	int error, fd;

	snprintf(beside, sizeof(beside), ".%s.tmp", name);
	unlinkat(dir_fd, beside, 0); /* of a process that had our number and died here */
	fd = openat(dir_fd, beside, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
	if (fd < 0)
		return -errno;
	error = write_all(fd, text->data, text->length);
	if (close(fd) && !error)
		error = -errno;
	if (!error && renameat(dir_fd, beside, dir_fd, name))
		error = -errno;
	if (error)
		unlinkat(dir_fd, beside, 0);
	return error;
}

static void log_failure(struct writer *writer, const char *name, int error)
{
	char message[320];

	if (!writer->failing && writer->log) {
		snprintf(message, sizeof(message), "cannot write %s: %s; its metrics are withdrawn until it can",
			 name, strerror(-error));
		writer->log(message);
	}
	writer->failing = true;
}

static void publish_gpu(struct writer *writer, unsigned gpu)
{
	char name[192];
	int error;

	prom_name(writer, gpu, name, sizeof(name));
	error = writer->text[gpu].failed ? -ENOMEM :
					   replace_file(writer->dir_fd, name, &writer->text[gpu]);
	if (!error) {
		atomic_fetch_or(&writer->published, 1u << gpu);
		writer->failing = false;
	} else {
		/* What cannot be renewed would be a stale number: better none. */
		unlinkat(writer->dir_fd, name, 0);
		atomic_fetch_and(&writer->published, ~(1u << gpu));
		log_failure(writer, name, error);
	}
	if (atomic_load(&writer->closing)) /* writer_close may have come before the file */
		unlinkat(writer->dir_fd, name, 0);
}

/* Texts of all GPUs under one hold of the lock: they are of the same window and the same communicators. */
static void publish(struct writer *writer)
{
	uint32_t gpus = 0;

	pthread_mutex_lock(writer->tables);
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
	uint64_t now = clock_ticks();

	pthread_mutex_lock(writer->tables); /* nothing is folded while slots are looked at */
	sweep_round(&writer->sweep, writer->track, now);
	pthread_mutex_unlock(writer->tables);
	atomic_store(&header->self_ns, clock_ns(CLOCK_THREAD_CPUTIME_ID));
	atomic_store(&header->beat_tick, now);
	atomic_store(&header->beat_real_ns, clock_ns(CLOCK_REALTIME));
}

/* Waits for the next thing to do or for the wake-up; returns true when asked to stop. */
static bool sleep_until(struct writer *writer, uint64_t due_ns)
{
	struct timespec due = { (time_t)(due_ns / 1000000000u), (long)(due_ns % 1000000000u) };
	int error = 0;
	bool stop;

	pthread_mutex_lock(&writer->lock);
	while (!writer->stop && error != ETIMEDOUT)
		error = pthread_cond_timedwait(&writer->wake, &writer->lock, &due);
	stop = writer->stop;
	pthread_mutex_unlock(&writer->lock);
	return stop;
}

/* Says that the last round is done. Returns false when a new communicator came meanwhile: go on. */
static bool end_thread(struct writer *writer)
{
	bool end;

	pthread_mutex_lock(&writer->lock);
	end = writer->stop;
	if (end) {
		writer->running = false;
		pthread_cond_broadcast(&writer->stopped);
	}
	pthread_mutex_unlock(&writer->lock);
	return end;
}

static void *thread_main(void *argument)
{
	struct writer *writer = argument;
	uint64_t interval_ns = (uint64_t)writer->config->interval_us * 1000;
	bool prom = writer->config->prom && writer->dir_fd >= 0 && interval_ns;
	uint64_t period_ns = interval_ns ? interval_ns : SNAPSHOT_NS;
	uint64_t next_beat = clock_ns(CLOCK_MONOTONIC) + ROUND_NS;
	uint64_t next_write = clock_ns(CLOCK_MONOTONIC) + period_ns;

	/* The application's locale may write a comma into numbers. */
	uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0));
	setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
	for (;;) {
		uint64_t due = next_write < next_beat ? next_write : next_beat;
		bool stop = sleep_until(writer, due);
		uint64_t now = clock_ns(CLOCK_MONOTONIC);

		if (stop || now >= next_beat) {
			beat(writer);
			next_beat = now + ROUND_NS;
		}
		if (stop || now >= next_write)
			box_snapshot(writer->box);
		if (stop) {
			unpublish(writer);
			if (end_thread(writer))
				return NULL;
		} else if (now >= next_write) {
			if (prom)
				publish(writer);
			/* On the grid of the period, whatever a round took. */
			next_write += (1 + (now - next_write) / period_ns) * period_ns;
		}
	}
}

void writer_init(struct writer *writer)
{
	pthread_condattr_t monotonic;

	writer->expo.box = writer->box;
	writer->expo.config = writer->config;
	pthread_mutex_init(&writer->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&writer->wake, &monotonic);
	pthread_cond_init(&writer->stopped, &monotonic);
	pthread_condattr_destroy(&monotonic);
}

/* glibc takes the program's thread-local data out of the stack, and some programs have much of it. */
static size_t stack_bytes(const pthread_attr_t *attributes)
{
	size_t (*minimum)(const pthread_attr_t *) =
		(size_t(*)(const pthread_attr_t *))dlsym(RTLD_DEFAULT, "__pthread_get_minstack");

	return STACK_BYTES + (minimum ? minimum(attributes) : 3 * STACK_BYTES);
}

/* The thread must not run the application's signal handlers: it blocks all signals from birth. */
static int start_thread(struct writer *writer)
{
	pthread_attr_t attributes;
	sigset_t all, old;
	pthread_t thread;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attributes, stack_bytes(&attributes));
	error = pthread_create(&thread, &attributes, thread_main, writer);
	pthread_attr_destroy(&attributes);
	if (error) {
		error = pthread_create(&thread, NULL, thread_main, writer);
		if (!error)
			pthread_detach(thread);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -error;
}

int writer_start(struct writer *writer)
{
	int error = 0;

	pthread_mutex_lock(&writer->lock);
	writer->stop = false;
	if (!writer->running) {
		error = start_thread(writer);
		writer->running = !error;
	}
	pthread_mutex_unlock(&writer->lock);
	return error;
}

void writer_ask_to_stop(struct writer *writer)
{
	pthread_mutex_lock(&writer->lock);
	writer->stop = true;
	pthread_cond_signal(&writer->wake);
	pthread_mutex_unlock(&writer->lock);
}

void writer_wait(struct writer *writer, unsigned wait_ms)
{
	uint64_t due_ns = clock_ns(CLOCK_MONOTONIC) + wait_ms * 1000000ull;
	struct timespec due = { (time_t)(due_ns / 1000000000u), (long)(due_ns % 1000000000u) };
	int error = 0;

	pthread_mutex_lock(&writer->lock);
	while (writer->running && writer->stop && error != ETIMEDOUT)
		error = pthread_cond_timedwait(&writer->stopped, &writer->lock, &due);
	pthread_mutex_unlock(&writer->lock);
}
