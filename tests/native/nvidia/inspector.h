/* SPDX-License-Identifier: Apache-2.0 */
/* inspector.h - stands in for NVIDIA's Inspector 2.30.7 where a site uses that with our hooks and
 * agent.
 *
 * Written from a description of how that plugin behaves: its variables, file names, labels,
 * formulas, and its defects. It writes metrics files, no JSON lines. It is no measurement of
 * NVIDIA's plugin, and nothing about its speed or memory follows from here.
 *
 * One thing is not as there: NVIDIA_STANDIN_PROM_FLOOR_MICROSECONDS replaces the 30 s to which the
 * interval is raised in Prometheus mode, because no test waits for that long.
 *
 * Each habit that is a defect carries its number of the list of defects: D1, P3, S4 ...
 */
#ifndef NVIDIA_H
#define NVIDIA_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "profiler_abi.h"

#define NVIDIA_CHANNELS 64u
#define NVIDIA_DEVICES 16u

struct nvidia_settings {
	bool enable, prom, p2p, thread, grow, kernel_timing;
	int64_t interval_us; /* -1: no thread and no output */
	size_t min_bytes, coll_ring, p2p_ring, coll_pool, p2p_pool;
	char dir[4096];
};

/* What NVIDIA's keeps of a channel for its JSON lines: it reads the clock for each. */
struct nvidia_trace {
	uint64_t start_us, stop_us, record_us;
};

enum nvidia_source { NVIDIA_KERNEL_GPU, NVIDIA_KERNEL_CPU, NVIDIA_COLLECTIVE_CPU };

/* A finished operation. */
struct nvidia_record {
	bool p2p;
	const char *func, *algo, *proto;
	uint64_t bytes, time_us;
	enum nvidia_source source;
	double algbw, busbw; /* 1e9 bytes a second */
};

struct nvidia_ring {
	struct nvidia_record *records; /* allocated with the first record */
	size_t size, begin, count;
};

struct nvidia_comm {
	struct nvidia_comm *next;
	uint64_t id;
	char name[256]; /* as it came */
	int rank, nranks, nnodes, device;
	char uuid[48];
	pthread_rwlock_t lock; /* of the rings */
	struct nvidia_ring coll, p2p;
};

enum nvidia_kind { NVIDIA_COLL, NVIDIA_P2P, NVIDIA_CHANNEL };

struct nvidia_op;

/* A handle points to the kind. */
struct nvidia_channel {
	enum nvidia_kind kind;
	struct nvidia_op *op;
	bool started, stopped;
	uint64_t gpu_start_ns, gpu_stop_ns, first_us, last_us;
	struct nvidia_trace trace;
	uint8_t channel;
};

struct nvidia_op {
	enum nvidia_kind kind;
	struct nvidia_op *next; /* in the pool */
	pthread_rwlock_t lock;
	struct nvidia_comm *comm;
	int refs; /* the application's and the kernel events' */
	const char *func, *algo, *proto;
	uint64_t bytes;
	unsigned channels, started, stopped;
	uint64_t start_us, stop_us, first_kernel_us, last_kernel_us;
	struct nvidia_channel channel[NVIDIA_CHANNELS]; /* by channel id: D1 */
};

extern struct nvidia_settings nvidia_settings;

void nvidia_settings_load(void);

/* Ordinal and UUID of the calling thread's GPU. Returns false without a driver. */
bool nvidia_gpu(int *device, char uuid[48]);

uint64_t nvidia_now_us(void);

/* Answers of the event functions, for operations and channels. */
void *nvidia_op_start(struct nvidia_comm *comm, const struct prof_descr_v5 *descr);
void *nvidia_channel_start(const struct prof_descr_v5 *descr);
void nvidia_channel_clock(struct nvidia_channel *channel, uint64_t gpu_ns);
void nvidia_channel_stop(struct nvidia_channel *channel);
void nvidia_op_stop(struct nvidia_op *op);
void nvidia_pools_free(void);

/* How long it took by the rules, and what rates follow. Returns false for one to be thrown away. */
bool nvidia_time(const struct nvidia_op *op, uint64_t *time_us, enum nvidia_source *source);
void nvidia_rate(struct nvidia_record *record, int nranks);

void nvidia_ring_push(struct nvidia_comm *comm, const struct nvidia_record *record);

/* Memory for all records of a ring; the caller frees it. */
struct nvidia_record *nvidia_ring_room(void);

/* Takes all records out, oldest first, into `room`. Returns how many. */
size_t nvidia_ring_take(struct nvidia_comm *comm, struct nvidia_ring *ring,
                        struct nvidia_record *room);

/* One dump of the communicators of a list. The caller holds the list's lock: S3. */
void nvidia_prom_dump(struct nvidia_comm *comms);
void nvidia_prom_end(void);

/* write(2) of all of it; what cannot be written is lost. */
void nvidia_write(int fd, const char *text, size_t length);

/* malloc that ends the process, as an exception does that nobody catches: S13. */
void *nvidia_memory(void *old, size_t bytes);

#endif
