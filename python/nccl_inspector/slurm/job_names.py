# SPDX-License-Identifier: Apache-2.0
"""The names of a job's directory below `jobs/` and of its file in `prom/`."""

import re

JOB_NAME = re.compile(r"[1-9][0-9]{0,17}")
PUBLISHED_NAME = re.compile(rf"({JOB_NAME.pattern})\.prom")
