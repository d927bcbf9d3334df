/* SPDX-License-Identifier: Apache-2.0 */
/* still.h - a world that stands still but for what the fuzzer does, so that an input always does
 * the same: the plugin's clocks are one word, and its background threads live when they are told
 * to. */
#ifndef NCCL_INSPECTOR_STILL_H
#define NCCL_INSPECTOR_STILL_H

#include <stdint.h>

#include "base/thread.h"

extern uint64_t still_now_ns;  /* CLOCK_MONOTONIC; the other clocks follow it */
extern uint64_t still_step_ns; /* a look at a clock takes so long */
extern uint64_t still_cpu_ns;  /* what a thread says it has used since it was asked last */

/* Lets a thread live until then, if it was started; its last round is as if it had been asked to
 * stop. */
void still_run(struct thread *worker, uint64_t until_ns);

#endif
