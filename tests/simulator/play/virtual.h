/* SPDX-License-Identifier: Apache-2.0 */
/* virtual.h - the world of one played process: its time goes on only when the player says so.
 *
 * The program is linked with -rdynamic, so its functions come before the C library's: the plugin
 * gets its clocks, waits, threads, process id and host name from this file. Exactly one thread runs
 * at any time. It runs until it waits, in no time at all; then the thread that is due first goes
 * on. So the same script always gives the same calls at the same times.
 *
 * The processor's counter traps (PR_SET_TSC) and stands still. The plugin's calibration finds that
 * and takes CLOCK_MONOTONIC instead, as on a machine whose counter cannot be trusted.
 */
#ifndef SIMULATOR_VIRTUAL_H
#define SIMULATOR_VIRTUAL_H

#include <stdbool.h>
#include <stdint.h>

struct virtual_world {
	int64_t real0_ns; /* CLOCK_REALTIME of the node at true time 0 */
	int64_t mono0_ns; /* CLOCK_MONOTONIC */
	double drift;     /* by which both are faster than true time: 20e-6 is 20 ppm */
	int pid;
	int minor; /* of the GPU */
	const char *host;
};

/* Begins at true time 0, in this thread, before the plugin is loaded. The world must stay. Returns
 * false, with a line on stderr, on a machine whose counter cannot be made to trap. */
bool virtual_begin(const struct virtual_world *world);

/* True time, ns since the job's start. */
int64_t virtual_now(void);

/* Lets time go on to `ns`, unless it is past that already. Threads that are due until then run
 * first. */
void virtual_advance(int64_t ns);

/* How often the counter was read, and how often a thread went on. */
uint64_t virtual_counter_reads(void);
uint64_t virtual_turns(void);

#endif
