# SPDX-License-Identifier: Apache-2.0
"""What a Prometheus answers: jobs as they are now, and jobs whose files are gone."""
