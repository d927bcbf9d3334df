/* SPDX-License-Identifier: Apache-2.0 */
/* prom/labels.h - series by the application's tag, the kernel of a symmetric collective, and the
 * root. */
#ifndef NCCL_INSPECTOR_PROM_LABELS_H
#define NCCL_INSPECTOR_PROM_LABELS_H

#include "prom/page.h"

/* Writes the series of the labels that were chosen. */
void prom_labels(struct prom_page *page);

#endif
