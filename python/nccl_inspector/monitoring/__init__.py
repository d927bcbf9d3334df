# SPDX-License-Identifier: Apache-2.0
"""The monitoring bundle: Prometheus' scrape configuration and rules, and Grafana's dashboards."""
