# SPDX-License-Identifier: Apache-2.0
"""How a job's directory below `jobs/` and its file in `prom/` are called."""

import re

JOB_NAME = re.compile(r"[1-9][0-9]{0,17}")
PUBLISHED_NAME = re.compile(rf"({JOB_NAME.pattern})\.prom")
