/* SPDX-License-Identifier: Apache-2.0 */
/* json/writer.h - the thread of the JSON mode: four to ten times a second (fifty in verbose mode,
 * whose ring is shorter) it turns finished operations into lines, and every interval, or when there
 * are many, it appends them to the file.
 *
 * It is not the thread of the beat: the user's directory may be on a file system that hangs, and
 * the box and the .prom files of this process must go on. It shares no lock with NCCL's threads.
 */
#ifndef NCCL_INSPECTOR_JSON_WRITER_H
#define NCCL_INSPECTOR_JSON_WRITER_H

#include "base/thread.h"
#include "config.h"
#include "json/comms.h"
#include "json/file.h"

#define JSONWRITER_BUFFER_BYTES ((size_t)256 * 1024)

struct jsonwriter {
	struct jsonring ring;
	struct thread thread;
	struct jsoncomms comms;
	struct json_process process;
	const struct box *box;
	void (*log)(const char *message);
	uint64_t interval_ns;     /* 0: when much has come together, and at the end */
	_Atomic bool idle;        /* nothing is left to write: no thread, or it is at its end */
	_Atomic bool ending;      /* the process ends, and waits for what is short */
	_Atomic bool inside;      /* the thread writes, or counts what it gives up */
	_Atomic bool closed;      /* the process waits no longer: it must not begin with that */
	_Atomic bool counted;     /* what was not settled then is counted as lost */
	_Atomic uint64_t settled; /* of the ring's operations: written, or counted as lost */
	uint64_t unmeasured;      /* operations without a time, as last counted */
	uint64_t retry_ns;        /* CLOCK_MONOTONIC: not before, after a write has failed */
	bool failing;             /* the last write failed, and was logged */
	size_t length;            /* whole lines in the buffer */
	char hostname[64];
	struct jsonfile file;
	char buffer[JSONWRITER_BUFFER_BYTES]; /* last: it is not touched without need */
};

/* Prepares memory and names; no file yet. `config` and `box` must outlive it; `log` is told what
 * goes wrong. Returns 0 or -errno. Under the inspector's lock. */
int jsonwriter_open(struct jsonwriter *writer, const struct config *config, const struct box *box,
                    void (*log)(const char *message));

/* A communicator whose operations may be handed over from now on. Any thread. */
void jsonwriter_add_comm(struct jsonwriter *writer, const struct json_comm_fields *fields);

/* Starts the thread unless it runs. Returns 0 or -errno. Under the inspector's lock. */
int jsonwriter_start(struct jsonwriter *writer);

/* At exit: lets the thread write what there is, and waits for that at most until `due_ns`
 * (CLOCK_MONOTONIC). From then on nothing is written; what was not is counted in the box. Waits for
 * no lock. */
void jsonwriter_close(struct jsonwriter *writer, uint64_t due_ns);

#endif
