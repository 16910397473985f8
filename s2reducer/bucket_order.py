# SPDX-License-Identifier: MIT
"""What the order of a hook's buckets tells: where a step begins, and that one module makes them."""

from collections.abc import Sequence

from torch import Tensor


class BucketOrder:
    """Follows the buckets of one DDP module.

    Within a step their indices ascend, up to the last; only the first step under static_graph has
    nothing but zeros, and does not show a second module.  ``is_last()`` alone would not do: it is
    False for all buckets of that step, and never comes where skip_all_reduce_unused_params leaves
    out the last bucket.
    """

    def __init__(self) -> None:
        self._seen: set[int] = set()  # id() of the parameters of the present step
        self._previous = (0, False)  # index() and is_last() of the bucket before
        self._held: set[int] = set()  # indices at which there was a bucket

    def begins_step(
        self, parameters: Sequence[Tensor], index: int, is_last: bool, known: bool
    ) -> bool:
        """Whether this bucket is the first of a step.

        It is when one of its parameters comes again; or, where buckets are left out, when its index
        does not fit behind the one before.  (Two steps that leave out each other's buckets, in
        ascending order, count as one.)  ``known`` tells whether its parameters had been seen or
        announced before; if not, they may be those of a bucket that was left out so far.

        Raises:
            ValueError: it begins a step of a module that was not known.
        """
        keys = set(map(id, parameters))
        first = not self._seen
        again = not self._seen.isdisjoint(keys)
        begins = first or again or not self._may_follow(index, is_last)
        if begins and not (first or again or known) and index in self._held:
            raise ValueError(
                "buckets come from more than one DDP module, but an S2State belongs to one: make "
                "a state for each (s2reducer.register does)"
            )
        self._seen = keys if begins else self._seen | keys
        self._previous = (index, is_last)
        self._held.add(index)
        return begins

    def _may_follow(self, index: int, is_last: bool) -> bool:
        ascends = index > self._previous[0] and not self._previous[1]
        return ascends or (index, is_last) == self._previous == (0, False)
