# SPDX-License-Identifier: MIT
"""The errors of this package."""


class S2Error(RuntimeError):
    """A bucket could not be reduced; the text says which, by what plan, in which round and step.

    What was raised first is the ``__cause__``, and ``S2State.last_error``.  Where a callback raised
    it, ``backward()`` shows a plain RuntimeError that quotes the text: DDP keeps no more of it.
    """


class Disagreement(ValueError):
    """Ranks want different things; all of them raise it at the same round, with the same text."""
