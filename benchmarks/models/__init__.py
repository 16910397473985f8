# SPDX-License-Identifier: MIT
"""Models that are trained to be measured, on batches that are drawn and mean nothing.

Each has a builder that gives a module, whose forward pass takes a batch and gives a loss, and a
function from (rank, step) to a batch.
"""

from .language import language_model
from .recommendation import recommendation_model
from .resnet import resnet18
from .task import Task

__all__ = ["Task", "language_model", "recommendation_model", "resnet18"]
