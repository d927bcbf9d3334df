# SPDX-License-Identifier: Apache-2.0
"""Views and reports from a Prometheus: of running jobs, and of jobs whose files are gone."""
