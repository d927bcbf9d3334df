# SPDX-License-Identifier: Apache-2.0
"""The service beside slurmctld that makes and keeps the reports of ended jobs."""
