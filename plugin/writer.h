/* SPDX-License-Identifier: Apache-2.0 */
/* writer.h - the one thread: once a second it looks after the slots and beats; every interval it replaces the
 * .prom files. Nothing that NCCL calls ever waits for its I/O, but the last finalize for at most 100 ms. */
#ifndef NCCL_INSPECTOR_WRITER_H
#define NCCL_INSPECTOR_WRITER_H

#include <pthread.h>

#include "expo_prom.h"
#include "sweep.h"

struct writer {
	struct box *box;
	struct track *track;
	const struct config *config;
	pthread_mutex_t *tables; /* held while the tables are read, never over I/O */
	int dir_fd;              /* -1: nowhere to write */
	pthread_mutex_t lock;    /* of the words below */
	pthread_cond_t wake, stopped;
	bool running, stop;
	_Atomic uint32_t published; /* bit i: the file of GPU i is there */
	_Atomic bool closing;       /* the process is ending: publish nothing more */
	bool failing;               /* the last write failed, and was logged */
	void (*log)(const char *message);
	struct expo expo;
	struct sweep sweep;
	struct text text[BOX_GPUS];
};

/* Prepares; starts nothing. */
void writer_init(struct writer *writer);
/* Starts the thread unless it runs. Returns 0 or -errno. */
int writer_start(struct writer *writer);
/* Asks for a last round, after which the thread ends by itself. */
void writer_ask_to_stop(struct writer *writer);
/* Waits for that end, at most wait_ms. */
void writer_wait(struct writer *writer, unsigned wait_ms);
/* At exit: removes the .prom files of this process for good. Takes no lock. */
void writer_close(struct writer *writer);

#endif
