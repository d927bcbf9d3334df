/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - what the environment asks for, read once. */
#ifndef NCCL_INSPECTOR_CONFIG_H
#define NCCL_INSPECTOR_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CONFIG_NODELIST_BYTES 256u
#define CONFIG_UNKNOWN UINT32_MAX
#define CONFIG_REFUSED_BYTES 400u

/* Network detail: never, while a hang is suspected, always. */
enum config_net { CONFIG_NET_OFF, CONFIG_NET_AUTO, CONFIG_NET_ON };

struct config {
	bool enabled;   /* NCCL_INSPECTOR_ENABLE */
	bool prom;      /* NCCL_INSPECTOR_PROM_DUMP */
	bool p2p;       /* NCCL_INSPECTOR_ENABLE_P2P */
	bool host_time; /* NCCL_INSPECTOR_HOST_TIME: time inside NCCL's calls, from NCCL 2.28 on */
	bool phases;    /* NCCL_INSPECTOR_PHASES: kernel phases, from NCCL 2.31 on */
	bool make_dir;  /* the directory is the user's own: make it if need be */
	enum config_net net; /* NCCL_INSPECTOR_NET: off, auto, on; from NCCL 2.27 on */
	/* NCCL_INSPECTOR_RUN_DIR, else _DUMP_DIR, else as NVIDIA's Inspector names it. */
	char dir[4096];
	int64_t interval_us; /* 0: write at the end only */
	bool json;           /* JSON lines: NCCL_INSPECTOR_JSON, or no RUN_DIR and no PROM_DUMP */
	bool json_gzip;      /* NCCL_INSPECTOR_JSON_GZIP */
	bool verbose; /* NCCL_INSPECTOR_DUMP_VERBOSE: JSON lines with the time of every event */
	/* NCCL_INSPECTOR_DUMP_DIR, else as NVIDIA's Inspector names it; made if need be. */
	char json_dir[4096];
	int64_t json_interval_us; /* 0: write at the end only */
	uint64_t json_min_bytes;  /* NCCL_INSPECTOR_JSON_MIN_SIZE_BYTES, else of all dumps */
	uint64_t json_max_bytes;  /* NCCL_INSPECTOR_JSON_MAX_BYTES, of all files of a process */
	unsigned json_files;      /* NCCL_INSPECTOR_JSON_FILES: how many of them are kept */
	/* NCCL_INSPECTOR_CONTROL_DIR, else the one beside Slurm's RUN_DIR; "": none. */
	char control_dir[4096];
	char deny_nccl[1024]; /* NCCL_INSPECTOR_DENY_NCCL, see ask/deny.h */
	uint32_t budget_ppm;  /* NCCL_INSPECTOR_BUDGET_PERCENT, of one core; 0: no limit */
	uint64_t min_bytes;   /* NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES */
	uint64_t job_id;      /* 0: not in a job */
	uint32_t step_id, procid, localid;    /* CONFIG_UNKNOWN: not set */
	uint32_t array_job_id, array_task_id; /* both known, or neither */
	char job[24], step[16]; /* as written in labels and names: "unknown", "x" when not set */
	char node[64], cluster[64];
	char nodelist[CONFIG_NODELIST_BYTES + 1];
	/* Variables with a wrong value, which count as not set; cut to fit. */
	char refused[CONFIG_REFUSED_BYTES];
};

typedef const char *(*config_getenv)(const char *name);

/* Reads everything from `get`, and the host's name where Slurm names no node. A wrong value counts
 * as not set and is named in `refused`. Once, under the inspector's lock. */
void config_load(struct config *config, config_getenv get);

/* Copies a node list, printable. One of more than CONFIG_NODELIST_BYTES is cut at a comma, with
 * ",+K" for the K parts left out. `to` has room for CONFIG_NODELIST_BYTES + 1; `nodelist` may be
 * NULL. */
void config_cut_nodelist(char *to, const char *nodelist);

#endif
