/* SPDX-License-Identifier: Apache-2.0 */
#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"

const char *const comm_kind_name[COMM_KINDS] = { "node", "cross", "world", "half", "parity" };
static const char *const op_kind_name[OP_KINDS] = { "allreduce", "allgather", "reducescatter",
                                                    "sendrecv" };

static const char help[] =
    "Usage: nccl-standin [OPTION]...\n"
    "Plays an NCCL application where there is no GPU: real ring collectives over TCP\n"
    "between the tasks of a Slurm step, and a profiler plugin loaded and called as NCCL does.\n"
    "\n"
    "What it runs\n"
    "  --comms LIST        communicators of node,cross,world (default), and of half,parity:\n"
    "                      the first half of the nodes and the second, every other node\n"
    "  --ops LIST          allreduce,allgather,reducescatter,sendrecv (default: all)\n"
    "  --sizes LIST        bytes of the larger buffer, with K, M, G (default 512K,1M)\n"
    "  --steps N           steps; each runs every operation and size on every communicator\n"
    "  --seconds S         start no step after S seconds (default, without --steps: 10)\n"
    "  --channels N        channels of an operation, 1 to 16 (default 2)\n"
    "  --rate MB/s         pace of a link, 1e6 bytes a second (default 40)\n"
    "  --compute-ms N      what the application computes before each operation (default 2)\n"
    "  --overlap           wait for the operations of a communicator together, not one by one\n"
    "  --no-barrier        do not let the ranks meet between two communicators: lateness\n"
    "                      then travels from one communicator into the next\n"
    "\n"
    "What goes wrong\n"
    "  --slow-rank R[:MS]  rank R computes MS longer before each operation (default 40)\n"
    "  --slow-gpu R[:MS]   the same of its GPU: it is called in time, and begins later\n"
    "  --throttle WHERE:MB/S[:FROM[:UNTIL]]\n"
    "                      links between nodes have that rate, from FROM to UNTIL seconds after\n"
    "                      the ranks have met; WHERE: all, a NODE (its links), or NODE+NODE;\n"
    "                      a rate of 0: nothing goes over them, to the end\n"
    "  --hang R[:STEP]     rank R calls nothing from step STEP on (default 3; the first is 0),\n"
    "                      the others wait; without --timeout for ever; means --no-barrier;\n"
    "                      R may be all: then nobody waits\n"
    "  --eat R[:STEP]      rank R takes memory from step STEP on (default 3) until it is killed,\n"
    "                      at most 2 GB\n"
    "  --mismatch R[:STEP] rank R calls another operation than the others from step STEP on\n"
    "                      (default 3): both begin and neither ends; the rest as --hang\n"
    "  --crossed R[:STEP]  rank R uses the communicators in reverse order from step STEP on\n"
    "                      (default 3): a deadlock; the rest as --hang\n"
    "  --deaf              who loses a neighbour waits for ever, as NCCL does over NVLink\n"
    "  --corrupt R         rank R contributes one wrong number: who gets it must notice\n"
    "\n"
    "As NCCL\n"
    "  --api N             highest profiler API offered, 4 to 7 (default 7): NCCL 2.27.7,\n"
    "                      2.28.9, 2.30.7, 2.32.3\n"
    "  --no-finalize       exit without destroying the communicators\n"
    "  NCCL_PROFILER_PLUGIN, NCCL_DEBUG as in NCCL; NCCL_STANDIN_CUDA=PATH: the CUDA driver\n"
    "  library to load in place of libcuda.so.1. Of the events of a proxy none is played.\n"
    "\n"
    "Running\n"
    "  --rendezvous DIR    directory that all tasks share, removed once they have met\n"
    "                      (default .nccl-standin-<job>.<step> in the working directory)\n"
    "  --log DIR           write <DIR>/<rank>.jsonl, one line per finished operation\n"
    "  --timeout S         limit of every wait for another task; 0: none (default 60)\n"
    "  --seed N            of the data (default 1)\n"
    "  --help              this text\n"
    "\n"
    "Who it is: RANK, WORLD_SIZE, LOCAL_RANK of a launcher, else SLURM_PROCID, SLURM_NTASKS,\n"
    "SLURM_LOCALID; SLURMD_NODENAME, else the host's name. By hand: set them.\n";

static uint64_t number(const char *name, const char *text, uint64_t min, uint64_t max)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || value < min || value > max)
		die("%s: '%s' is not a number from %llu to %llu", name, text,
		    (unsigned long long)min, (unsigned long long)max);
	return value;
}

static size_t size(const char *text)
{
	char digits[24];
	size_t length = strspn(text, "0123456789");
	unsigned int shift = 0;
	uint64_t bytes;

	if (!length || length >= sizeof(digits))
		die("--sizes: '%s' is not a size", text);
	memcpy(digits, text, length);
	digits[length] = '\0';
	if (text[length])
		shift = text[length] == 'K' ? 10 : text[length] == 'M' ? 20 : 30;
	if (text[length] && (!strchr("KMG", text[length]) || text[length + 1]))
		die("--sizes: '%s' does not end in K, M or G", text);
	bytes = number("--sizes", digits, 1, UINT64_C(1) << 30) << shift;
	if (bytes < 4 || bytes > (UINT64_C(1) << 32))
		die("--sizes: '%s' is not from 4 bytes to 4G", text);
	return bytes & ~UINT64_C(3);
}

static int choice(const char *name, const char *word, const char *const *words, int n_words)
{
	for (int i = 0; i < n_words; i++)
		if (!strcmp(word, words[i]))
			return i;
	die("%s: '%s' is not known", name, word);
}

/* Calls take for each word of the list; `max` bounds their number. Cuts the text. */
static int split(const char *name, char *list, int max, void (*take)(void *, int, const char *),
                 void *to)
{
	int n = 0;
	char *rest = NULL;

	for (char *word = strtok_r(list, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
		if (n == max)
			die("%s: more than %d words", name, max);
		take(to, n++, word);
	}
	if (!n)
		die("%s: the list is empty", name);
	return n;
}

static void take_comm(void *to, int i, const char *word)
{
	struct options *opt = to;

	opt->comms[i] = (enum comm_kind)choice("--comms", word, comm_kind_name, COMM_KINDS);
	for (int j = 0; j < i; j++)
		if (opt->comms[j] == opt->comms[i])
			die("--comms: '%s' is there twice", word);
}

static void take_op(void *to, int i, const char *word)
{
	((struct options *)to)->ops[i] =
	    (enum op_kind)choice("--ops", word, op_kind_name, OP_KINDS);
}

static void take_size(void *to, int i, const char *word)
{
	((struct options *)to)->sizes[i] = size(word);
}

static int rank_of(const char *name, const char *text)
{
	bool all = !strcmp(name, "--hang") && !strcmp(text, "all");

	return all ? HANG_ALL : (int)number(name, text, 0, 1000000);
}

/* "R" or "R:N". */
static void rank_and(const char *name, char *text, int *rank, uint64_t *value)
{
	char *colon = strchr(text, ':');

	if (colon) {
		*colon = '\0';
		*value = number(name, colon + 1, 0, 1000000);
	}
	*rank = rank_of(name, text);
}

enum {
	O_COMMS = 256,
	O_OPS,
	O_SIZES,
	O_STEPS,
	O_SECONDS,
	O_CHANNELS,
	O_RATE,
	O_COMPUTE,
	O_OVERLAP,
	O_NO_BARRIER,
	O_SLOW,
	O_SLOW_GPU,
	O_THROTTLE,
	O_HANG,
	O_EAT,
	O_MISMATCH,
	O_CROSSED,
	O_CORRUPT,
	O_DEAF,
	O_API,
	O_NO_FINALIZE,
	O_RENDEZVOUS,
	O_LOG,
	O_TIMEOUT,
	O_SEED,
	O_HELP
};

static const struct option words[] = {
	{ "comms", required_argument, NULL, O_COMMS },
	{ "ops", required_argument, NULL, O_OPS },
	{ "sizes", required_argument, NULL, O_SIZES },
	{ "steps", required_argument, NULL, O_STEPS },
	{ "seconds", required_argument, NULL, O_SECONDS },
	{ "channels", required_argument, NULL, O_CHANNELS },
	{ "rate", required_argument, NULL, O_RATE },
	{ "compute-ms", required_argument, NULL, O_COMPUTE },
	{ "overlap", no_argument, NULL, O_OVERLAP },
	{ "no-barrier", no_argument, NULL, O_NO_BARRIER },
	{ "slow-rank", required_argument, NULL, O_SLOW },
	{ "slow-gpu", required_argument, NULL, O_SLOW_GPU },
	{ "throttle", required_argument, NULL, O_THROTTLE },
	{ "hang", required_argument, NULL, O_HANG },
	{ "eat", required_argument, NULL, O_EAT },
	{ "mismatch", required_argument, NULL, O_MISMATCH },
	{ "crossed", required_argument, NULL, O_CROSSED },
	{ "corrupt", required_argument, NULL, O_CORRUPT },
	{ "deaf", no_argument, NULL, O_DEAF },
	{ "api", required_argument, NULL, O_API },
	{ "no-finalize", no_argument, NULL, O_NO_FINALIZE },
	{ "rendezvous", required_argument, NULL, O_RENDEZVOUS },
	{ "log", required_argument, NULL, O_LOG },
	{ "timeout", required_argument, NULL, O_TIMEOUT },
	{ "seed", required_argument, NULL, O_SEED },
	{ "help", no_argument, NULL, O_HELP },
	{ NULL, 0, NULL, 0 },
};

/* The settings that are one plain number. */
static const struct {
	int word;
	const char *name;
	size_t offset;
	uint64_t min, max;
} numbers[] = {
	{ O_STEPS, "--steps", offsetof(struct options, steps), 1, UINT32_MAX },
	{ O_SECONDS, "--seconds", offsetof(struct options, seconds), 1, UINT32_MAX },
	{ O_CHANNELS, "--channels", offsetof(struct options, channels), 1, MAX_CHANNELS },
	{ O_RATE, "--rate", offsetof(struct options, rate_mbs), 1, 100000 },
	{ O_COMPUTE, "--compute-ms", offsetof(struct options, compute_ms), 0, 1000000 },
	{ O_TIMEOUT, "--timeout", offsetof(struct options, timeout_s), 0, 1000000 },
	{ O_SEED, "--seed", offsetof(struct options, seed), 0, UINT32_MAX },
	{ O_API, "--api", offsetof(struct options, api), 4, 7 },
};

static bool take_number(struct options *opt, int word)
{
	for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++) {
		if (numbers[i].word != word)
			continue;
		*(uint64_t *)((char *)opt + numbers[i].offset) =
		    number(numbers[i].name, optarg, numbers[i].min, numbers[i].max);
		return true;
	}
	return false;
}

static void take_word(struct options *opt, int word)
{
	switch (word) {
	case O_COMMS:
		opt->n_comms = split("--comms", optarg, COMM_KINDS, take_comm, opt);
		break;
	case O_OPS:
		opt->n_ops = split("--ops", optarg, OP_KINDS, take_op, opt);
		break;
	case O_SIZES:
		opt->n_sizes = split("--sizes", optarg, MAX_SIZES, take_size, opt);
		break;
	case O_OVERLAP:
		opt->overlap = true;
		break;
	case O_NO_BARRIER:
		opt->barrier = false;
		break;
	case O_SLOW:
		rank_and("--slow-rank", optarg, &opt->slow_rank, &opt->slow_ms);
		break;
	case O_SLOW_GPU:
		rank_and("--slow-gpu", optarg, &opt->slow_gpu_rank, &opt->slow_gpu_ms);
		break;
	case O_THROTTLE:
		throttle_parse(&opt->throttle, optarg);
		break;
	case O_HANG:
		rank_and("--hang", optarg, &opt->hang_rank, &opt->hang_step);
		break;
	case O_EAT:
		rank_and("--eat", optarg, &opt->eat_rank, &opt->eat_step);
		break;
	case O_MISMATCH:
		rank_and("--mismatch", optarg, &opt->mismatch_rank, &opt->mismatch_step);
		break;
	case O_CROSSED:
		rank_and("--crossed", optarg, &opt->crossed_rank, &opt->crossed_step);
		break;
	case O_CORRUPT:
		opt->corrupt_rank = (int)number("--corrupt", optarg, 0, 1000000);
		break;
	case O_DEAF:
		opt->deaf = true;
		opt->barrier = false;
		break;
	case O_NO_FINALIZE:
		opt->finalize = false;
		break;
	case O_RENDEZVOUS:
		opt->rendezvous = optarg;
		break;
	case O_LOG:
		opt->log_dir = optarg;
		break;
	case O_HELP:
		fputs(help, stdout);
		exit(0);
	default: /* getopt has said what is wrong */
		exit(1);
	}
}

void options_parse(struct options *opt, int argc, char **argv)
{
	const uint64_t unset = UINT64_MAX;
	bool hangs;
	int word;

	*opt = (struct options){
		.comms = { COMM_NODE, COMM_CROSS, COMM_WORLD },
		.n_comms = 3,
		.ops = { OP_ALLREDUCE, OP_ALLGATHER, OP_REDUCESCATTER, OP_SENDRECV },
		.n_ops = OP_KINDS,
		.sizes = { 512 << 10, 1 << 20 },
		.n_sizes = 2,
		.compute_ms = 2,
		.rate_mbs = 40,
		.timeout_s = unset,
		.seed = 1,
		.channels = 2,
		.api = 7,
		.slow_rank = -1,
		.slow_gpu_rank = -1,
		.slow_ms = 40,
		.slow_gpu_ms = 40,
		.hang_rank = -1,
		.hang_step = 3,
		.eat_rank = -1,
		.eat_step = 3,
		.mismatch_rank = -1,
		.mismatch_step = 3,
		.crossed_rank = -1,
		.crossed_step = 3,
		.corrupt_rank = -1,
		.barrier = true,
		.finalize = true,
	};
	while ((word = getopt_long(argc, argv, "", words, NULL)) != -1)
		if (!take_number(opt, word))
			take_word(opt, word);
	if (optind != argc)
		die("'%s' is not an option; see --help", argv[optind]);
	if (!opt->steps && !opt->seconds)
		opt->seconds = 10;
	hangs = opt->hang_rank != -1 || opt->mismatch_rank >= 0 || opt->crossed_rank >= 0;
	if (hangs)
		opt->barrier =
		    false; /* so that the waiting is inside NCCL, where it is looked for */
	if (opt->timeout_s == unset)
		opt->timeout_s = hangs ? 0 : 60;
}
