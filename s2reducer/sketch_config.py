# SPDX-License-Identifier: MIT
"""The settings of the plan ``sketch``, checked one by one."""

from dataclasses import dataclass

from s2reducer.arguments import number, whole

ON_OVERFLOW = ("repair", "defer", "estimate")
MOST_ROWS = 8


@dataclass(frozen=True)
class SketchConfig:
    """The shape of the tables, and what becomes of blocks that they cannot give back.

    Attributes:
        rows: hashes of a block, 1 to 8.  Only with two or more can colliding blocks be told apart.
        cells: of all rows of a table together, for each block that is expected in it.  With three
            rows nearly all tables are decoded whole above 1.222, if there are many blocks.
        margin: how many times the blocks of the last steps are expected, at least 1.
        on_overflow: what becomes of blocks that cannot be peeled.  ``"repair"``: they are summed
            by an AllReduce of their own.  ``"defer"``: they are 0 this time, and each rank keeps
            its own values and adds them to its next gradient.  ``"estimate"``: the median over rows
            of what is left in their cells.  The first two do the same with blocks whose error may
            be above 2^-16 of their largest element.
        fixed: a table keeps the size for the blocks of the first step; ``margin`` is not used.
        error_feedback: with ``"estimate"`` and one row, each rank keeps what the estimate missed
            and adds it to its next gradient; estimates are then damped, or the errors would grow
            from step to step (``docs/sketch.md``).
        peel_rounds: rounds of peeling at most, after which blocks count as stuck; None for as many
            as there are, over NCCL 32.  There each takes its time whether or not it finds
            anything, since the host does not wait to see.

    Raises:
        TypeError, ValueError: a setting is not of its kind, or not among the accepted values.
    """

    rows: int = 3
    cells: float = 1.3
    margin: float = 1.1
    on_overflow: str = "repair"
    fixed: bool = False
    error_feedback: bool = False
    peel_rounds: int | None = None

    @property
    def reads_nothing(self) -> bool:
        """Whether nothing that follows from values changes what is sent, once a first step has
        shown the sizes of the tables."""
        return self.fixed and self.on_overflow != "repair"

    @property
    def owes(self) -> bool:
        """Whether blocks may be kept for the next step."""
        return self.on_overflow == "defer" or self.error_feedback

    def __post_init__(self) -> None:
        whole("sketch rows", self.rows, 1, MOST_ROWS)
        if self.peel_rounds is not None:
            whole("sketch peel_rounds", self.peel_rounds, 1, (1 << 31) - 1)
        for name, least in (("cells", 0.0), ("margin", 1.0)):
            value = number(f"sketch {name}", getattr(self, name))
            if not least <= value <= 1000.0 or value == 0.0:
                bound = "above 0" if least == 0.0 else "at least 1"
                raise ValueError(f"sketch {name} must be {bound} and at most 1000, but is {value}")
        if self.on_overflow not in ON_OVERFLOW:
            accepted = ", ".join(map(repr, ON_OVERFLOW))
            raise ValueError(
                f"sketch on_overflow must be one of {accepted}, but is {self.on_overflow!r}"
            )
        for name in ("fixed", "error_feedback"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise TypeError(f"sketch {name} must be True or False, but is {value!r}")
        if self.error_feedback and self.on_overflow != "estimate":
            raise ValueError(
                'sketch error_feedback goes with on_overflow="estimate", but on_overflow is '
                f"{self.on_overflow!r}"
            )
        if self.error_feedback and self.rows != 1:
            raise ValueError(
                f"sketch error_feedback goes with one row, but rows is {self.rows}: medians of the "
                "ranks do not add up to the median of the sum"
            )
