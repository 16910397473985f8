# SPDX-License-Identifier: MIT
"""COO gradients: rows in any order, summed by the same plans, nothing of the table's length."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from ranks import SKETCH, Ranks, assert_same_on_all_ranks, recorded_collectives, world_sizes
from seeds import SEED
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import s2reducer

pytestmark = pytest.mark.usefixtures("seed")
WIDE = {
    torch.float32: torch.float64,
    torch.float64: torch.float64,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
HUGE = 10**9


def coo(indices: Any, values: Tensor, size: tuple[int, ...]) -> Tensor:
    return torch.sparse_coo_tensor(indices, values, size, check_invariants=False)


def sparse_gradient(
    seed: int, rank: int, nrows: int, width: int, count: int, dtype: torch.dtype
) -> Tensor:
    """``count`` rows, unsorted, some of them twice and more."""
    random_numbers = torch.Generator().manual_seed(seed + rank)
    pool = torch.randint(nrows, (max(1, count // 2),), generator=random_numbers)
    rows = pool[torch.randint(len(pool), (count,), generator=random_numbers)]
    values = torch.randn(count, width, generator=random_numbers, dtype=torch.float64)
    return coo(rows[None], values.to(dtype), (nrows, width))


def expected(gradients: list[Tensor], divisor: float) -> dict[int, Tensor]:
    """By row: each rank's own sum, in order of appearance, rounded; then the sum over ranks."""
    dtype = gradients[0].dtype
    wide = WIDE[dtype]
    total: dict[int, Tensor] = {}
    for gradient in gradients:
        own: dict[int, Tensor] = {}
        rows, values = gradient._indices()[0].tolist(), gradient._values()
        for row, value in zip(rows, values, strict=True):
            own[row] = own[row] + value.to(wide) if row in own else value.to(wide)
        for row, value in own.items():
            value = value.to(dtype).to(wide)
            value = value / divisor if dtype == torch.float64 else value
            total[row] = total[row] + value if row in total else value
    after = 1.0 if dtype == torch.float64 else divisor
    return {row: (total[row] / after).to(dtype) for row in sorted(total)}


def assert_rows(result: Tensor, rows: dict[int, Tensor]) -> None:
    assert result.is_coalesced()
    assert result.indices()[0].tolist() == list(rows)
    for value, row in zip(result.values(), rows.values(), strict=True):
        assert torch.equal(value, row)


class Table(nn.Module):
    """A parameter whose gradient is the COO tensor that it is called with."""

    def __init__(self, nrows: int, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.table = nn.Embedding(nrows, width, sparse=True, dtype=dtype)  # DDP knows the class
        self.bias = nn.Parameter(torch.zeros(5, dtype=dtype))

    def forward(self, gradient: Tensor) -> Tensor:
        rows = self.table(gradient._indices()[0])
        return (rows * gradient._values()).sum() + self.bias.sum()


def train(seed: int, dtype: torch.dtype, counts: list[int], settings: dict[str, Any]) -> set[str]:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    nrows, width = 5000, 12
    ddp = DistributedDataParallel(Table(nrows, width, dtype))
    state = s2reducer.register(ddp, **settings)
    for step in range(3):
        gradients = [
            sparse_gradient(
                seed + 100 * step, r, nrows, width, counts[(r + step) % len(counts)], dtype
            )
            for r in range(world_size)
        ]
        ddp.zero_grad()
        ddp(gradients[rank]).backward()
        weight = ddp.module.table.weight.grad
        assert weight is not None and weight.is_sparse
        assert_same_on_all_ranks([weight])
        assert_rows(weight, expected(gradients, world_size))
        assert torch.equal(ddp.module.bias.grad, torch.ones(5, dtype=dtype))
    entries = {entry["name"]: entry for entry in state.report().as_dict()["parameters"]}
    table = entries["table.weight"]
    assert table["block"] == width
    return {table["plan"]}


@pytest.mark.parametrize("world_size", world_sizes(2, 3, 5, 8))
@pytest.mark.parametrize("dtype", WIDE)
def test_rows_are_summed_exactly(ranks: Ranks, dtype: torch.dtype, world_size: int) -> None:
    ranks.run(world_size, train, SEED, dtype, [60, 1, 20], {"deterministic": True})


@pytest.mark.parametrize("plan", ["owner", "gather"])
def test_plans_give_the_same_bits(ranks: Ranks, plan: str) -> None:
    assert ranks.run(4, train, SEED, torch.float32, [90, 20], {"plan": plan}) == [{plan}] * 4


@pytest.mark.parametrize("counts", [[0, 50], [0], [0, 0, 1]])
def test_ranks_without_rows(ranks: Ranks, counts: list[int]) -> None:
    ranks.run(3, train, SEED, torch.float32, counts, {"deterministic": True})


def train_embeddings(sparse: bool, plan: str) -> list[Tensor]:
    """Bags and tokens whose sums are exact."""
    torch.manual_seed(3)
    model = nn.ModuleList(
        [nn.Embedding(900, 16, sparse=sparse), nn.EmbeddingBag(700, 8, sparse=sparse, mode="sum")]
    )
    ddp = DistributedDataParallel(_Embeddings(model))
    s2reducer.register(ddp, plan=plan)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.5)
    random_numbers = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(6):
        tokens = torch.randint(700, (64,), generator=random_numbers)
        optimizer.zero_grad()
        ddp(tokens).backward()
        optimizer.step()
    return [parameter.detach() for parameter in ddp.parameters()]


class _Embeddings(nn.Module):
    def __init__(self, tables: nn.ModuleList) -> None:
        super().__init__()
        self.tables = tables

    def forward(self, tokens: Tensor) -> Tensor:
        embedding, bag = self.tables
        return embedding(tokens).sum() + bag(tokens.view(8, 8)).sum()


@pytest.mark.parametrize("plan", ["auto", "owner", "union", SKETCH])
def test_sparse_embeddings_train_like_dense_ones(ranks: Ranks, plan: str) -> None:
    sparse = ranks.run(4, train_embeddings, True, plan)
    dense = ranks.run(4, train_embeddings, False, "dense")
    for one, other in zip(sparse[0], dense[0], strict=True):
        assert torch.equal(one, other)
    for other_rank in sparse[1:]:
        assert all(torch.equal(a, b) for a, b in zip(sparse[0], other_rank, strict=True))


def reduce_huge(seed: int, plan: str) -> tuple[int, set[str]]:
    """A table of a billion rows; what would be as long as it could not be allocated."""
    world_size, rank = dist.get_world_size(), dist.get_rank()
    gradients = [sparse_gradient(seed, r, HUGE, 4, 30, torch.float32) for r in range(world_size)]
    with recorded_collectives() as calls:
        result = s2reducer.all_reduce(gradients[rank], plan=plan)
    assert_rows(result, expected(gradients, world_size))
    return max(length for _, _, length in calls), {name for name, _, _ in calls}


@pytest.mark.parametrize("plan", ["auto", "owner", "gather"])
def test_row_numbers_up_to_a_billion(ranks: Ranks, plan: str) -> None:
    for longest, names in ranks.run(3, reduce_huge, SEED, plan):
        assert longest < 10_000
        assert "all_reduce" not in names  # of which backends have none for sparse tensors


def no_rows(plan: str) -> None:
    """Rows of no elements; no dimension that is sparse."""
    empty = coo(torch.zeros(1, 2, dtype=torch.int64), torch.zeros(2, 0), (10, 0))
    assert s2reducer.all_reduce(empty, plan=plan).shape == (10, 0)
    whole = coo(torch.zeros(0, 1, dtype=torch.int64), torch.ones(1, 3), (3,))
    result = s2reducer.all_reduce(whole, op="sum", plan=plan)
    assert result.to_dense().tolist() == [float(dist.get_world_size())] * 3


@pytest.mark.parametrize("plan", ["auto", "owner", "sketch"])
def test_what_is_no_table_goes_as_the_backend_sends_it(ranks: Ranks, plan: str) -> None:
    ranks.run(2, no_rows, plan)


def empty_tables(plan: str) -> list[torch.Size]:
    """Of no rows, so that nothing has a share of nothing."""
    results = []
    for size, ndims in [((0, 8), 1), ((0,), 1), ((5, 0, 4), 2)]:
        indices, values = torch.zeros(ndims, 0, dtype=torch.int64), torch.zeros(0, *size[ndims:])
        results.append(s2reducer.all_reduce(coo(indices, values, size), plan=plan))
    assert all(result.is_coalesced() and result._nnz() == 0 for result in results)
    return [result.shape for result in results]


@pytest.mark.parametrize("plan", ["auto", "owner", "sketch"])
def test_tables_without_rows(ranks: Ranks, plan: str) -> None:
    assert ranks.run(2, empty_tables, plan) == [[(0, 8), (0,), (5, 0, 4)]] * 2


def several_sparse_dims() -> None:
    rank = dist.get_rank()
    indices = torch.tensor([[1, 0, 1], [2, 1, 2]]) if rank == 0 else torch.tensor([[0], [2]])
    values = torch.ones(indices.shape[1], 2, 3) * (rank + 1)
    tensor = coo(indices, values, (2, 3, 2, 3))
    result = s2reducer.all_reduce(tensor, op="sum")
    assert result.indices().tolist() == [[0, 0, 1], [1, 2, 2]]
    assert result.values()[:, 0, 0].tolist() == [1.0, 2.0, 2.0]
    assert result.is_coalesced() and result.shape == tensor.shape


def test_several_sparse_dimensions(ranks: Ranks) -> None:
    ranks.run(2, several_sparse_dims)


def rows_out_of_range() -> str:
    tensor = coo([[1, 5]], torch.ones(2, 4), (6, 4))
    tensor._indices()[0, 1] = 6 + dist.get_rank()
    with pytest.raises(s2reducer.S2Error) as raised:
        s2reducer.all_reduce(tensor)
    return str(raised.value)


def test_a_row_that_the_table_lacks(ranks: Ranks) -> None:
    for text in ranks.run(1 + 1, rows_out_of_range):
        assert "indices" in text or "closed" in text, text


# ------------------------------------------------------------------------------------------------
# Several tables
# ------------------------------------------------------------------------------------------------


class Tables(nn.Module):
    """Tables of several widths, and something dense between them and in front."""

    def __init__(self, dtypes: list[torch.dtype]) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 200)
        self.tables = nn.ModuleList(
            nn.Embedding(400 + 7 * i, 4 + i, sparse=True, dtype=dtype)
            for i, dtype in enumerate(dtypes)
        )

    def forward(self, tokens: Tensor, used: list[int]) -> Tensor:
        total = self.dense(torch.ones(3)).sum()
        for i in used:
            total = total + (self.tables[i](tokens + i) * (i + 1)).sum().float()
        return total


def train_tables(dtypes: list[torch.dtype], steps: int) -> list[int]:
    """The collectives of each step."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(Tables(dtypes))
    state = s2reducer.register(ddp, plan="owner")
    counts = []
    for step in range(steps):
        ddp.zero_grad()
        with recorded_collectives() as calls:
            ddp(torch.tensor([step, 5 + rank]), list(range(len(dtypes)))).backward()
        counts.append(sum(name != "all_reduce" for name, _, _ in calls))
        for i, table in enumerate(ddp.module.tables):
            rows = {step + i: float((i + 1) * world_size)}
            for r in range(world_size):
                rows[5 + r + i] = rows.get(5 + r + i, 0.0) + i + 1
            grad = table.weight.grad
            assert grad is not None and grad.is_coalesced()
            assert grad.indices()[0].tolist() == sorted(rows)
            expected = torch.tensor([rows[row] for row in sorted(rows)]) / world_size
            assert grad.values().eq(expected[:, None].to(grad.dtype)).all()
            assert_same_on_all_ranks([grad])
        for entry in state.report().as_dict()["parameters"]:
            if entry["name"].startswith("tables"):
                i = int(entry["name"].split(".")[1])
                assert entry["block"] == 4 + i and entry["plan"] == "owner"
    return counts


def test_tables_that_follow_one_another_travel_together(ranks: Ranks) -> None:
    for counts in ranks.run(2, train_tables, [torch.float32] * 6, 5):
        assert counts[0] >= 6 * 4  # header, lists, rows to owners, results
        # The tables come behind the dense layer, or around it; that one has a header and rows, too.
        assert max(counts[2:]) <= 2 * 4 + 3


def test_tables_of_other_dtypes_travel_apart(ranks: Ranks) -> None:
    dtypes = [torch.float32, torch.float32, torch.float64, torch.float64, torch.bfloat16]
    for counts in ranks.run(4, train_tables, dtypes, 4):
        assert 3 * 4 <= max(counts[2:]) <= 4 * 4 + 3


def flush_without_a_follower() -> None:
    ddp = DistributedDataParallel(Tables([torch.float32] * 2))
    state = s2reducer.register(ddp, plan="gather")
    for _ in range(3):
        ddp(torch.tensor([1, 2]), [0, 1]).backward()
    # As if another bucket had come after each of them: the callback of the backward pass sends.
    for layout in state._layouts._layouts.values():
        layout.memory.followed = True
    original = type(state._sender).send
    type(state._sender).send = lambda self, job, place, last: original(self, job, place, False)
    try:
        ddp.zero_grad()
        ddp(torch.tensor([1, 2]), [0, 1]).backward()
    finally:
        type(state._sender).send = original
    for i, table in enumerate(ddp.module.tables):
        assert table.weight.grad.coalesce().values().eq(i + 1).all()


def test_the_end_of_the_backward_pass_sends_what_waits(ranks: Ranks) -> None:
    ranks.run(2, flush_without_a_follower)
