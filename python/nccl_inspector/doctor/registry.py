# SPDX-License-Identifier: Apache-2.0
"""All checks, in the order in which they are told."""

from typing import Final

from nccl_inspector.doctor import (
    checks_hooks,
    checks_image,
    checks_job,
    checks_job_environment,
    checks_monitoring,
    checks_node,
    checks_plugin,
    checks_run_dir,
    checks_storage,
)

CHECKS: Final = (
    *checks_plugin.CHECKS,
    *checks_hooks.CHECKS,
    *checks_run_dir.CHECKS,
    *checks_node.CHECKS,
    *checks_monitoring.CHECKS,
    *checks_storage.CHECKS,
    *checks_job.CHECKS,
    *checks_job_environment.CHECKS,
    *checks_image.CHECKS,
)
BY_ID: Final = {one.id: one for one in CHECKS}
