/* SPDX-License-Identifier: Apache-2.0 */
#include "oplog.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm.h"
#include "fail.h"

void oplog_open(struct oplog *log, const char *dir, int rank)
{
	char path[4096];

	*log = (struct oplog){ .fd = -1, .rank = rank };
	if (!dir)
		return;
	if (mkdir(dir, 0777) && errno != EEXIST)
		die("cannot make %s: %s", dir, strerror(errno));
	snprintf(path, sizeof(path), "%s/%d.jsonl", dir, rank);
	log->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
	if (log->fd < 0)
		die("cannot write %s: %s", path, strerror(errno));
}

void oplog_write(const struct oplog *log, const struct op *op)
{
	const struct comm *comm = op->comm;
	uint64_t start = UINT64_MAX, stop = 0;
	char line[512], peer[32] = "";
	int n;

	if (log->fd < 0)
		return;
	for (int i = 0; i < op->n_channels; i++) {
		start = op->channels[i].start_ns < start ? op->channels[i].start_ns : start;
		stop = op->channels[i].stop_ns > stop ? op->channels[i].stop_ns : stop;
	}
	if (op->peer >= 0)
		snprintf(peer, sizeof(peer), ",\"peer\":%d", op->peer);
	n = snprintf(
	    line, sizeof(line),
	    "{\"rank\":%d,\"comm\":\"0x%" PRIx64 "\",\"comm_name\":\"%s\",\"comm_rank\":%d,"
	    "\"nranks\":%d,\"n_nodes\":%d,\"func\":\"%s\",\"seq\":%" PRIu64 ",\"bytes\":%zu,"
	    "\"start_ns\":%" PRIu64 ",\"stop_ns\":%" PRIu64 ",\"channels\":%d%s}\n",
	    log->rank, comm->id, comm->name, comm->rank, comm->n_ranks, comm->n_nodes,
	    func_name(op->func), op->seq, op->count * sizeof(float), start, stop, op->n_channels,
	    peer);
	if (write(log->fd, line, (size_t)n) != n)
		die("cannot write the log: %s", strerror(errno));
}
