# SPDX-License-Identifier: Apache-2.0
"""The service next to slurmctld that makes and keeps the reports of ended jobs."""
