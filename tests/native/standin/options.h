/* SPDX-License-Identifier: Apache-2.0 */
/* options.h - the command line of nccl-standin. */
#ifndef STANDIN_OPTIONS_H
#define STANDIN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "throttle.h"

#define MAX_SIZES 16
#define MAX_CHANNELS 16

enum comm_kind { COMM_NODE, COMM_CROSS, COMM_WORLD, COMM_HALF, COMM_PARITY, COMM_KINDS };
enum op_kind { OP_ALLREDUCE, OP_ALLGATHER, OP_REDUCESCATTER, OP_SENDRECV, OP_KINDS };

#define HANG_ALL (-2)

struct options {
	const char *rendezvous; /* NULL: a name made of the job and the step */
	const char *log_dir;    /* NULL: no log */
	enum comm_kind comms[COMM_KINDS];
	int n_comms;
	enum op_kind ops[OP_KINDS];
	int n_ops;
	size_t sizes[MAX_SIZES]; /* bytes, multiples of 4 */
	int n_sizes;
	uint64_t steps;   /* 0: not limited */
	uint64_t seconds; /* 0: not limited */
	uint64_t compute_ms;
	uint64_t rate_mbs;  /* per link, 1e6 bytes a second */
	uint64_t timeout_s; /* 0: for ever */
	uint64_t seed;
	uint64_t channels;
	uint64_t api;
	int slow_rank; /* -1: none */
	uint64_t slow_ms;
	int slow_gpu_rank; /* -1: none */
	uint64_t slow_gpu_ms;
	struct throttle throttle;
	int hang_rank; /* -1: none; HANG_ALL */
	uint64_t hang_step;
	int eat_rank; /* -1: none */
	uint64_t eat_step;
	int mismatch_rank; /* -1: none */
	uint64_t mismatch_step;
	int crossed_rank; /* -1: none */
	uint64_t crossed_step;
	bool mismatched;  /* it has come to that */
	int corrupt_rank; /* -1: none */
	bool barrier;
	bool overlap;
	bool deaf;
	bool finalize;
};

/* Fills opt. A bad word is a line on stderr and status 1; --help is status 0. */
void options_parse(struct options *opt, int argc, char **argv);

extern const char *const comm_kind_name[COMM_KINDS];

#endif
