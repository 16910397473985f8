# SPDX-License-Identifier: MIT
"""What is remembered of the first error of a state."""

import threading

from s2reducer.errors import S2Error
from s2reducer.job import Job
from s2reducer.residuals import Residuals


class Failure:
    """Hooks, lanes and callbacks report to it, so it has a lock.

    Args:
        residuals: of the state; what a step that fails leaves of them is rejected.

    Attributes:
        error: the first exception, or None.
        step: in which it came.
    """

    def __init__(self, residuals: Residuals) -> None:
        self._residuals = residuals
        self._lock = threading.Lock()
        self.error: Exception | None = None
        self.step = 0
        self._text = ""
        self._refused_from = 0

    def refuse(self, step: int) -> None:
        """Raises S2Error if there was an error, and this step is one of those that are refused."""
        if self.error is not None and step >= self._refused_from:
            raise S2Error(f"this S2State has failed before: {self._text}")

    def report(self, error: Exception, where: Job | int, refused_from: int = 0) -> S2Error:
        """The error to raise; from step ``refused_from`` on the state refuses to work.

        ``where`` is the bucket, or the number of the step in which there was none yet.
        """
        self._residuals.reject()
        if isinstance(where, int):
            step, place = where, f"step {where}"
        else:
            step = where.step
            place = f"step {step}, {where.layout.describe()}, plan {where.plan}, {where.round}"
        raised = S2Error(f"{place}: {error}")
        with self._lock:
            if self.error is None:
                self.error, self.step, self._text = error, step, str(raised)
                self._refused_from = refused_from
        return raised
