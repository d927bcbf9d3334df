/* SPDX-License-Identifier: Apache-2.0 */
/* fresh.h - the plugin's one inspector as it was before the first communicator, once for each
 * input. */
#ifndef NCCL_INSPECTOR_FRESH_H
#define NCCL_INSPECTOR_FRESH_H

#include <stdbool.h>
#include <stdint.h>

#include "box/box.h"
#include "base/textbuf.h"

/* Forgets everything, and gives back its memory and descriptors. */
void fresh_inspector(void);

/* Lets the background threads live for so long. */
void fresh_rounds(uint64_t ns);

/* The box, NULL when there is none. */
const struct box *fresh_box(void);

/* The latest metrics of the first GPU; without data: none were written. */
const struct textbuf *fresh_metrics(void);

/* Whether there is a thread for JSON lines: after the last communicator what comes waits for the
 * next. */
bool fresh_writes_lines(void);

/* Lines that were handed over and neither written nor counted as dropped: none while it writes,
 * after fresh_rounds. */
uint64_t fresh_lines_missing(void);

#endif
