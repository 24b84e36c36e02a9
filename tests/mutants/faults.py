"""All faults that were made by hand."""

from __future__ import annotations

import checkpoint_faults
import commit_faults
import core_faults
import log_faults
import outer_faults
import posix_faults
import runtime_faults

FAULTS = (
    *core_faults.FAULTS,
    *commit_faults.FAULTS,
    *log_faults.FAULTS,
    *posix_faults.FAULTS,
    *checkpoint_faults.FAULTS,
    *runtime_faults.FAULTS,
    *outer_faults.FAULTS,
)
