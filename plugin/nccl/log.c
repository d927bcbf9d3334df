/* SPDX-License-Identifier: Apache-2.0 */
#include "nccl/log.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"

void notes_say(struct notes *notes, const char *text)
{
	atomic_fetch_add(&notes->speaking, 1); /* before the look at the logger: notes_wait looks the other way round */
	abi_logger logger = atomic_load(&notes->logger);

	if (logger)
		/* Not WARN: NCCL keeps the last warning as the reason of the next failure. */
		logger(ABI_LOG_INFO, ABI_LOG_INIT, "nccl-inspector", 0, "nccl-inspector: job %s: %s", notes->job, text);
	atomic_fetch_sub(&notes->speaking, 1);
}

void notes_keep(struct notes *notes, const char *text)
{
	if (notes->kept < NOTES_KEPT)
		snprintf(notes->text[notes->kept++], NOTES_BYTES, "%s", text);
}

bool notes_take(struct notes *notes, char text[NOTES_BYTES])
{
	if (!notes->kept)
		return false;
	memcpy(text, notes->text[0], NOTES_BYTES);
	notes->kept--;
	memmove(notes->text[0], notes->text[1], notes->kept * sizeof(notes->text[0]));
	return true;
}

void notes_wait(struct notes *notes, uint64_t due_ns)
{
	struct timespec pause = { 0, 500000 };

	while (atomic_load(&notes->speaking) && clock_ns(CLOCK_MONOTONIC) < due_ns)
		nanosleep(&pause, NULL);
}
