/* SPDX-License-Identifier: Apache-2.0 */
/* rank.h - plays one rank's script to the plugin, in this process, which ends with it. */
#ifndef SIMULATOR_RANK_H
#define SIMULATOR_RANK_H

#include <stdint.h>

/* What the process tells of its play, in memory that its parent sees. */
struct rank_told {
	uint32_t done; /* 1: the whole script was played */
	int32_t procid;
	uint64_t turns; /* how often a thread of the plugin or the player went on */
};

/* Does not return. `cuda`: the library that says which GPU there is. */
void rank_play(const char *plugin, const char *cuda, const char *script, struct rank_told *told)
    __attribute__((noreturn));

#endif
