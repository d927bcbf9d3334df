/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

void log_say(struct log *log, const char *text)
{
	/* Before the look at the logger: log_wait looks the other way round. */
	atomic_fetch_add(&log->speaking, 1);
	abi_logger logger = atomic_load(&log->logger);

	if (logger)
		/* Not WARN: NCCL keeps the last warning as the reason of the next failure. */
		logger(ABI_LOG_INFO, ABI_LOG_INIT, "nccl-inspector", 0,
		       "nccl-inspector: job %s: %s", log->job, text);
	atomic_fetch_sub(&log->speaking, 1);
}

void log_keep(struct log *log, const char *text)
{
	if (log->kept < LOG_KEPT)
		snprintf(log->text[log->kept++], LOG_BYTES, "%s", text);
}

bool log_take(struct log *log, char text[LOG_BYTES])
{
	if (!log->kept)
		return false;
	memcpy(text, log->text[0], LOG_BYTES);
	log->kept--;
	memmove(log->text[0], log->text[1], log->kept * sizeof(log->text[0]));
	return true;
}

void log_wait(struct log *log, uint64_t due_ns)
{
	struct timespec pause = { 0, 500000 };

	while (atomic_load(&log->speaking) && clock_ns(CLOCK_MONOTONIC) < due_ns)
		nanosleep(&pause, NULL);
}
