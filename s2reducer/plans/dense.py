# SPDX-License-Identifier: MIT
"""The plan that DDP itself follows: one AllReduce of everything."""

from torch import Tensor

from s2reducer.plans import Job, Pending


def reduce_dense(job: Job) -> Pending:
    """The mean by DDP's own arithmetic, in the bucket's own dtype.

    Without a hook DDP multiplies by the reciprocal of the world size while it copies gradients into
    the bucket, before the AllReduce.  The same here gives the same bits.
    """
    job.plan = "dense"
    job.round = "AllReduce"
    buffer = job.buffer.mul_(1.0 / job.transport.world_size)
    return Pending(job.transport.all_reduce(buffer), lambda: buffer)


def reduce_sparse_tensor(job: Job) -> Pending:
    """The COO gradient of ``nn.Embedding(sparse=True)``, as DDP reduces it without a hook.

    It divides the gradient itself and hands it to the backend, which sums duplicates first.
    """
    job.plan = "dense"
    job.round = "sparse AllReduce"
    mean: Tensor = job.buffer.div_(job.transport.world_size).coalesce()
    return Pending(job.transport.all_reduce_sparse(mean), lambda: mean)
