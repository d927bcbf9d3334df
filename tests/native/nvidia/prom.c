/* SPDX-License-Identifier: Apache-2.0 */
/* prom.c - Prometheus text: means of a window, a file for each GPU. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inspector.h"

#define LINE_BYTES 1024

/* What falls together within a window. Names and sizes only, no rank and no id: P1. */
struct bucket {
	const struct nvidia_comm *comm; /* the first one of its like */
	bool p2p;
	const char *func;
	char size[48], algo_proto[48];
	uint64_t ops, rates;
	double time_us, log_rate; /* sums */
};

struct file {
	char uuid[48], path[4200];
	int fd;
	uint64_t dump_us; /* by the wall clock */
};

static struct file files[NVIDIA_DEVICES];
static size_t n_files;

/* Linear within a unit: up to 1023 of them (P5). */
static void size_label(uint64_t bytes, char *label, size_t room)
{
	static const char *const units[] = { "B", "KB", "MB", "GB", "TB" };
	unsigned unit = 0;

	for (; bytes >= 1024 && unit < 4; unit++)
		bytes /= 1024;
	snprintf(label, room, "%llu-%llu%s", (unsigned long long)bytes,
	         (unsigned long long)bytes + 1, units[unit]);
}

static bool falls_in(const struct bucket *bucket, const struct bucket *like)
{
	const struct nvidia_comm *a = bucket->comm, *b = like->comm;

	return bucket->p2p == like->p2p && a->nranks == b->nranks && a->nnodes == b->nnodes &&
	       !strcmp(a->uuid, b->uuid) && !strcmp(a->name, b->name) &&
	       !strcmp(bucket->func, like->func) && !strcmp(bucket->size, like->size) &&
	       !strcmp(bucket->algo_proto, like->algo_proto);
}

static void add_to_bucket(struct bucket **buckets, size_t *n, const struct nvidia_comm *comm,
                          const struct nvidia_record *record)
{
	struct bucket like = { .comm = comm, .p2p = record->p2p, .func = record->func };
	size_t i = 0;

	size_label(record->bytes, like.size, sizeof(like.size));
	if (!record->p2p)
		snprintf(like.algo_proto, sizeof(like.algo_proto), "%s_%s", record->algo,
		         record->proto);
	while (i < *n && !falls_in(&(*buckets)[i], &like))
		i++;
	if (i == *n) {
		*buckets = nvidia_memory(*buckets, ++*n * sizeof(**buckets));
		(*buckets)[i] = like;
	}
	(*buckets)[i].ops++;
	(*buckets)[i].time_us += (double)record->time_us;
	if (record->busbw > 0) {
		(*buckets)[i].rates++;
		(*buckets)[i].log_rate += log(record->busbw);
	}
}

/* One file for a GPU, whoever uses it (P2), open to all (P6). Time of day says whether this is
 * another dump, and then it begins anew, in place (P3); a clock that goes back makes it longer
 * (P7). */
static int file_of(const char *uuid, uint64_t dump_us)
{
	struct file *file = files;

	while (file < files + n_files && strcmp(file->uuid, uuid) != 0)
		file++;
	if (file == files + n_files) {
		if (n_files == NVIDIA_DEVICES)
			return -1;
		n_files++;
		memcpy(file->uuid, uuid, sizeof(file->uuid));
		snprintf(file->path, sizeof(file->path), "%s/nccl_inspector_metrics_%s.prom",
		         nvidia_settings.dir, uuid);
		file->fd = open(file->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0777);
		if (file->fd >= 0)
			fchmod(file->fd, 0777);
	}
	if (dump_us > file->dump_us) {
		if (file->fd >= 0 && ftruncate(file->fd, 0))
			return -1;
		file->dump_us = dump_us;
	}
	return file->fd;
}

void nvidia_write(int fd, const char *text, size_t length)
{
	while (length) {
		ssize_t n = write(fd, text, length);

		if (n <= 0)
			return;
		text += n;
		length -= (size_t)n;
	}
}

/* As they are, quotes and all: P4. */
static void add_labels(const struct bucket *bucket, char *line, size_t room)
{
	const struct nvidia_comm *comm = bucket->comm;
	const char *job = getenv("SLURM_JOB_ID");
	char node[256] = "";
	int n;

	gethostname(node, sizeof(node) - 1);
	n = snprintf(
	    line, room,
	    "{version=\"v5.1\",slurm_job_id=\"%s\",node=\"%s\",gpu=\"GPU%d\",comm_name=\"%s\","
	    "n_nodes=\"%d\",nranks=\"%d\",%s=\"%s\",message_size=\"%s\"",
	    job && *job ? job : "unknown", node, comm->device, comm->name, comm->nnodes,
	    comm->nranks, bucket->p2p ? "p2p_operation" : "collective", bucket->func, bucket->size);
	if (n < 0 || (size_t)n >= room)
		return;
	if (bucket->p2p)
		snprintf(line + n, room - (size_t)n, "}");
	else
		snprintf(line + n, room - (size_t)n, ",algo_proto=\"%s\"}", bucket->algo_proto);
}

/* Means only (D8); no HELP and no TYPE (P6). */
static void write_bucket(const struct bucket *bucket, uint64_t dump_us)
{
	int fd = file_of(bucket->comm->uuid, dump_us);
	const char *kind = bucket->p2p ? "nccl_p2p" : "nccl";
	char labels[LINE_BYTES], lines[2 * LINE_BYTES + 256];
	double rate = bucket->rates ? exp(bucket->log_rate / (double)bucket->rates) : 0;

	if (fd < 0)
		return;
	add_labels(bucket, labels, sizeof(labels));
	snprintf(lines, sizeof(lines),
	         "%s_bus_bandwidth_gbs%s %.6g\n%s_exec_time_microseconds%s %.6g\n", kind, labels,
	         rate, bucket->p2p ? kind : "nccl_collective", labels,
	         bucket->time_us / (double)bucket->ops);
	nvidia_write(fd, lines, strlen(lines));
}

/* A GPU of which nothing finished keeps its file as it was: D9. What has not finished is nowhere:
 * D10. */
void nvidia_prom_dump(struct nvidia_comm *comms)
{
	uint64_t dump_us = nvidia_now_us();
	struct nvidia_record *room = nvidia_ring_room();
	struct bucket *buckets = NULL;
	size_t n = 0;

	for (struct nvidia_comm *comm = comms; comm; comm = comm->next) {
		struct nvidia_ring *rings[] = { &comm->coll, &comm->p2p };

		for (size_t ring = 0; ring < 2; ring++) {
			size_t count = nvidia_ring_take(comm, rings[ring], room);

			for (size_t i = 0; i < count; i++)
				add_to_bucket(&buckets, &n, comm, &room[i]);
		}
	}
	for (size_t i = 0; i < n; i++)
		write_bucket(&buckets[i], dump_us);
	free(buckets);
	free(room);
}

void nvidia_prom_end(void)
{
	for (size_t i = 0; i < n_files; i++) {
		unlink(files[i].path);
		if (files[i].fd >= 0)
			close(files[i].fd);
		memset(&files[i], 0, sizeof(files[i]));
	}
	n_files = 0;
}
