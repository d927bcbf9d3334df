/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - what the measurements share: the two profilers side by side, the load, the clock.
 *
 * Everything is printed as lines `row side value`; tests/bench/profiler.py makes the table.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdbool.h>
#include <stdint.h>

#include "player.h"

#define COMMS 33u
#define TAGS 8u
#define API 5 /* NCCL 2.28; NVIDIA's speaks no other */

enum which { NOTHING, OURS, SIDES };

struct side {
	const char *word;
	struct player player;
	struct player_comm comms[COMMS];
	uint64_t over_ns[COMMS]; /* when the communicator's latest kernel ended */
};

extern struct side sides[SIDES];

/* The version of the interface that both speak; API unless main() was told another. */
extern unsigned api;

/* Opens both with all their communicators, and teaches the one that does nothing to ask for and
 * answer what ours does. Ends the program with a line when that fails. */
void sides_open(const char *nothing, const char *ours);

/* Ours alone, without communicators. */
void ours_open(const char *ours);
void comm_name(struct player_comm *comm, unsigned number);

/* Destroys what is there and prints `told ours <operations>`, those of sides_open() included. */
void sides_close(void);
/* Operations that ours was told of. */
extern uint64_t told_ours;

/* The `number`-th operation of the load: collectives of 3 functions and 3 sizes over the
 * communicators; LOAD_MIXED: of 16 sizes, hardly ever the one that the communicator had before;
 * LOAD_SENDS: Sends and Recvs, each a group of its own as NCCL makes it of a lone call;
 * LOAD_TAGGED: the collectives with tags of the user, which v7 tells; LOAD_COUNTED: the Sends and
 * Recvs after one to oneself, which are counted and not timed up to v6; LOAD_NET: the collectives,
 * and each channel's Send to the next rank by NCCL's proxy, if the plugin asks for that. */
extern enum load {
	LOAD_COLLS,
	LOAD_MIXED,
	LOAD_SENDS,
	LOAD_TAGGED,
	LOAD_COUNTED,
	LOAD_NET,
	LOADS
} load;
extern const char *const load_names[LOADS]; /* before a row's name, and for LOAD_COLLS nothing */

/* What both are told before a load, once. */
void load_begin(void);
struct player_op load_op(unsigned number, unsigned channels);
struct player_comm *load_comm(struct side *side, unsigned number);

/* The kernel's events: it ran in the second half of the operation's life, and after the one before
 * of its communicator: kernels of one stream do not overlap. Of every fourth operation
 * channel by channel: the first stops before the second starts. */
void load_kernel(struct side *side, struct player_op *op, unsigned number);

/* A counter that is read in a few nanoseconds, and its period. */
uint64_t ticks(void);
double ns_per_tick(void);
uint64_t now_ns(void);

/* CPU time of all threads but the calling one. */
uint64_t other_threads_ns(void);

void pin(int cpu); /* the calling thread; modulo the processors there are */

/* 0 or 1, another each time it may be. */
unsigned coin(void);

void say(const char *row, const char *side, double value);
void fail(const char *what) __attribute__((noreturn));

/* One file each: */
void measure_warm(unsigned rounds);
void measure_counted(unsigned rounds);
void measure_net(unsigned rounds);
/* Plays so many operations to one side, "ours" or "nothing", and tells nothing of it: for a tool
 * that counts instructions. `what`: "only-<side>-<load>", the load "colls" or its name in
 * load_names. */
void play_only(const char *what, unsigned many);
void measure_pairs(unsigned rounds);
void measure_paced(unsigned rounds);
void measure_counts(void);
void measure_sustained(unsigned rounds);
void measure_gentle(unsigned rounds);
void measure_finalize(const char *ours);
void measure_memory(const char *ours);
void measure_dump(const char *ours, unsigned rounds);

#endif
