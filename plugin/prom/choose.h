/* SPDX-License-Identifier: Apache-2.0 */
/* prom/choose.h - which series a GPU has: the busiest, within bounds. */
#ifndef NCCL_INSPECTOR_PROM_CHOOSE_H
#define NCCL_INSPECTOR_PROM_CHOOSE_H

#include "prom/window.h"

#define PROM_MAX_SERIES 250u /* a GPU */
#define PROM_MAX_COMMS 16u   /* with series of their own, a GPU: the busiest */
#define PROM_MAX_NET 64u     /* of the series, for network detail */
#define PROM_MAX_LABELS 48u  /* of the series, for tags, kernels and roots */

/* Chooses communicators, peers, labels and keys of one GPU (an index of box_header.gpu) into
 * prom->comms, nets, labels and keys. How many series are left out is added to
 * box_header.series_dropped. After prom_window, under the inspector's lock. */
void prom_choose(struct prom *prom, unsigned gpu);

#endif
