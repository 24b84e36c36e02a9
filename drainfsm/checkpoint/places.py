"""Where everything lies in the files of a generation: the ranks' reports, and ``.metadata``.

With a plan that is used again, hardly anything lies elsewhere than at the save before: objects,
whose length may change. Only that is reported and pickled again.
"""

from __future__ import annotations

import operator
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.storage import WriteResult

from drainfsm.errors import SaveFailedError

METADATA_VERSION = "1.0.0"
"""What ``FileSystemWriter`` of torch 2.6 to 2.14 writes."""


class ReportedPlaces(NamedTuple):
    """One rank's report."""

    results: list[WriteResult]
    in_full: bool
    """False: only what lies elsewhere than it did when this rank last reported in full."""


class Places:
    """On the coordinator: of one plan."""

    def __init__(self, metadata: Metadata) -> None:
        """``metadata``: of the plan, as ``create_global_plan`` makes it."""
        self._tensors = _Pickled(metadata.state_dict_metadata)
        self._places: _Pickled | None = None

    @property
    def known(self) -> bool:
        """Every rank has reported in full once."""
        return self._places is not None

    def metadata(
        self, reports: Sequence[ReportedPlaces], storage_meta: StorageMeta | None
    ) -> bytes:
        """The content of ``.metadata``, which anything that unpickles reads as torch's own.

        Raises:
            SaveFailedError: a rank left out what is not known here.
        """
        found = {r.index: r.storage_data for report in reports for r in report.results}
        in_full = {report.in_full for report in reports}
        if in_full == {True}:
            self._places, found = _Pickled(found), {}
        elif self._places is None or in_full != {False}:
            raise SaveFailedError("a rank reported less than the coordinator had asked for")
        places: Any = _Updated(self._places, found)
        tensors: Any = self._tensors
        return pickle.dumps(
            Metadata(
                state_dict_metadata=tensors,
                storage_data=places,
                storage_meta=storage_meta,
                version=METADATA_VERSION,
            )
        )


class _Pickled:
    """Inside another pickle it becomes the value that it was made of."""

    def __init__(self, value: object) -> None:
        self._data = pickle.dumps(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self._data,)


class _Updated:
    """Unpickled, it is one dict."""

    def __init__(self, before: _Pickled, changed: dict[Any, Any]) -> None:
        self._before = before
        self._changed = changed

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.or_, (self._before, self._changed)
