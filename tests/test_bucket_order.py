# SPDX-License-Identifier: MIT
"""Where steps begin, from the buckets alone."""

import pytest
import torch

from s2reducer.bucket_order import BucketOrder

A, B, C = ([torch.zeros(1)] for _ in range(3))


def begins(*buckets: tuple[list[torch.Tensor], int, bool], known: bool = True) -> list[bool]:
    order = BucketOrder()
    return [order.begins_step(*bucket, known) for bucket in buckets]


def test_ordinary_steps() -> None:
    step = [(A, 0, False), (B, 1, False), (C, 2, True)]
    assert begins(*step, *step) == [True, False, False] * 2


def test_a_rebuild_changes_the_order_of_parameters() -> None:
    first, second = [(A + B + C, 0, True)], [(C, 0, False), (A + B, 1, True)]
    assert begins(*first, *second, *second) == [True, True, False, True, False]


def test_the_first_step_of_static_graph_has_only_zeros() -> None:
    zeros = [(A, 0, False), (B, 0, False), (C, 0, False)]
    assert begins(*zeros, (C, 0, False), (B, 1, False), (A, 2, True)) == [
        True, False, False, True, False, False,
    ]  # fmt: skip


def test_the_last_bucket_may_never_come() -> None:
    assert begins(*[(A, 0, False), (B, 1, False)] * 3) == [True, False] * 3


@pytest.mark.parametrize("known", [True, False])
def test_buckets_may_be_left_out(known: bool) -> None:
    """skip_all_reduce_unused_params: no parameter comes again, but the index goes back."""
    buckets = [(A, 0, False), (C, 2, True), (B, 1, False), (C, 2, True)]
    assert begins(*buckets, known=known) == [True, False, True, False]


def test_a_second_module_is_refused() -> None:
    with pytest.raises(ValueError, match="more than one DDP module"):
        begins((A, 0, True), (B, 0, True), known=False)
