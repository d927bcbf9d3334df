# SPDX-License-Identifier: Apache-2.0
"""The service on each node: it publishes the metrics of running jobs and collects ended ones."""
