/* SPDX-License-Identifier: Apache-2.0 */
/* beat/beat.h - the background thread: once a second it looks after the tables and says in the box
 * that the process lives; every interval it replaces the .prom files.
 *
 * Nothing that NCCL calls waits for its I/O, except that the last finalize waits for at most 100
 * ms.
 */
#ifndef NCCL_INSPECTOR_BEAT_BEAT_H
#define NCCL_INSPECTOR_BEAT_BEAT_H

#include "ask/mask.h"
#include "base/textbuf.h"
#include "base/thread.h"
#include "beat/quiet.h"
#include "net/proxy.h"
#include "prom/window.h"
#include "upkeep/samples.h"
#include "upkeep/sweep.h"
#include "upkeep/timeline.h"

struct beat {
	struct box *box;
	struct track *track;
	const struct config *config;
	struct mask *mask;
	pthread_mutex_t *tables; /* held while the tables are read, never over I/O */
	/* none: nowhere to write; config.make_dir: the thread's own business. */
	struct descriptor dir;
	uint64_t own_ns;                  /* CPU time of the thread so far */
	struct thread thread;             /* to be started, stopped and waited for as any */
	_Atomic uint32_t published;       /* bit i: the file of GPU i is there */
	_Atomic bool closing;             /* the process is ending: publish nothing more */
	bool failing;                     /* the last write failed, and was logged */
	void (*log)(const char *message); /* without the lock */
	struct net *net;
	void (*ask_anew)(void); /* net_events has changed; called under `tables` */
	struct quiet quiet;
	struct prom prom;
	struct sweep sweep;
	struct timeline timeline;
	struct samples samples; /* prepared by samples_init */
	struct textbuf text[BOX_GPUS];
};

/* Prepares the thread; starts nothing. The members from `box` to `own_ns`, `log`, `net`,
 * `ask_anew`, `prom.api` and `samples` must be set. */
void beat_init(struct beat *beat);

/* At exit: has the thread remove the .prom files of this process for good, or write those that are
 * written at the end. Waits for that at most until `due_ns` (CLOCK_MONOTONIC), and for no lock. */
void beat_close(struct beat *beat, uint64_t due_ns);

#endif
