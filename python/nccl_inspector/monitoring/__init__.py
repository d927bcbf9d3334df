# SPDX-License-Identifier: Apache-2.0
"""The monitoring bundle: Prometheus' scrape configuration and rules, Grafana's dashboards."""
