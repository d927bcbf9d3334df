/* SPDX-License-Identifier: Apache-2.0 */
/* prom/keys.h - the series of a kind of operation: its values and labels. */
#ifndef NCCL_INSPECTOR_PROM_KEYS_H
#define NCCL_INSPECTOR_PROM_KEYS_H

#include "prom/page.h"

/* Write the means of the window, and what was counted since the process began, of the keys that
 * were chosen. */
void prom_key_gauges(struct prom_page *page);
void prom_key_counters(struct prom_page *page);

#endif
