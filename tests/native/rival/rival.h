/* SPDX-License-Identifier: Apache-2.0 */
/* rival.h - a profiler with the habits of NVIDIA's Inspector 2.30.7, bad ones included.
 *
 * Written from a description of how that plugin behaves: its variables, file names, labels, JSON
 * keys, formulas, and its defects. It is a partner for tests: a check of ours must fail on it. It
 * is no measurement of NVIDIA's plugin, and nothing about its speed or memory follows from here.
 *
 * One thing is not as there: RIVAL_PROM_FLOOR_MICROSECONDS replaces the 30 s to which the interval is
 * raised in Prometheus mode, because no test waits for that long.
 *
 * Each habit that is a defect carries its number of the list of defects: D1, P3, S4 ...
 */
#ifndef RIVAL_H
#define RIVAL_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "profiler_abi.h"

#define RIVAL_CHANNELS 64u
#define RIVAL_DEVICES 16u

struct rival_settings {
	bool enable, prom, verbose, p2p, thread, grow, kernel_timing;
	int64_t interval_us; /* -1: no thread and no output */
	size_t min_bytes, coll_ring, p2p_ring, coll_pool, p2p_pool;
	char dir[4096];
};

/* What the trace keeps of a channel: order of the events in the process, and gettimeofday. */
struct rival_trace {
	uint64_t start_sn, stop_sn, record_sn;
	uint64_t start_us, stop_us, record_us;
};

enum rival_source { RIVAL_KERNEL_GPU, RIVAL_KERNEL_CPU, RIVAL_COLLECTIVE_CPU };

/* A finished operation. */
struct rival_record {
	bool p2p;
	const char *func, *algo, *proto;
	uint64_t sn, bytes, time_us;
	enum rival_source source;
	int peer;
	double algbw, busbw; /* 1e9 bytes a second */
	unsigned channels;
	uint64_t start_sn, stop_sn, start_us, stop_us;
	struct rival_trace trace[RIVAL_CHANNELS];
};

struct rival_ring {
	struct rival_record *records; /* allocated with the first record */
	size_t size, begin, count;
};

struct rival_comm {
	struct rival_comm *next;
	uint64_t id, p2p_sn;
	char name[256]; /* as it came */
	int rank, nranks, nnodes, device;
	char uuid[48];
	pthread_rwlock_t lock; /* of the rings */
	struct rival_ring coll, p2p;
};

enum rival_kind { RIVAL_COLL, RIVAL_P2P, RIVAL_CHANNEL };

struct rival_op;

/* A handle points to the kind. */
struct rival_channel {
	enum rival_kind kind;
	struct rival_op *op;
	bool started, stopped;
	uint64_t gpu_start_ns, gpu_stop_ns, first_us, last_us;
	struct rival_trace trace;
	uint8_t channel;
};

struct rival_op {
	enum rival_kind kind;
	struct rival_op *next; /* in the pool */
	pthread_rwlock_t lock;
	struct rival_comm *comm;
	int refs; /* the application's and the kernel events' */
	const char *func, *algo, *proto;
	uint64_t sn, bytes;
	int peer;
	unsigned channels, started, stopped;
	uint64_t start_sn, stop_sn, start_us, stop_us, first_kernel_us, last_kernel_us;
	struct rival_channel channel[RIVAL_CHANNELS]; /* by channel id: D1 */
};

extern struct rival_settings rival_settings;

void rival_settings_load(void);

/* Ordinal and UUID of the calling thread's GPU. Returns false without a driver. */
bool rival_gpu(int *device, char uuid[48]);

uint64_t rival_now_us(void);

/* Answers of the event functions, for operations and channels. */
void *rival_op_start(struct rival_comm *comm, const struct prof_descr_v5 *descr);
void *rival_channel_start(const struct prof_descr_v5 *descr);
void rival_channel_clock(struct rival_channel *channel, uint64_t gpu_ns);
void rival_channel_stop(struct rival_channel *channel);
void rival_op_stop(struct rival_op *op);
void rival_pools_free(void);

/* How long it took by the rules, and what rates follow. Returns false for one to be thrown away. */
bool rival_time(const struct rival_op *op, uint64_t *time_us, enum rival_source *source);
void rival_rate(struct rival_record *record, int nranks);

void rival_ring_push(struct rival_comm *comm, const struct rival_record *record);

/* Memory for all records of a ring; the caller frees it. */
struct rival_record *rival_ring_room(void);

/* Takes all records out, oldest first, into `room`. Returns how many. */
size_t rival_ring_take(struct rival_comm *comm, struct rival_ring *ring, struct rival_record *room);

/* One dump of the communicators of a list. The caller holds the list's lock: S3. */
void rival_prom_dump(struct rival_comm *comms);
void rival_prom_end(void);
void rival_json_dump(struct rival_comm *comms);
void rival_json_end(void);

/* write(2) of all of it; what cannot be written is lost. */
void rival_write(int fd, const char *text, size_t length);

/* malloc that ends the process, as an exception does that nobody catches: S13. */
void *rival_memory(void *old, size_t bytes);

#endif
