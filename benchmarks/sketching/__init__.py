# SPDX-License-Identifier: MIT
"""The parts of ``bench_sketch.py``: each measures one property of the sketch.

tables      tables to insert into and to peel, for all the others
decoding    how often peeling gives back everything
errors      how far peeled values are from the sums
estimates   how far estimates are from the sums, and what error feedback makes of that
speed       inserting and peeling beside a memcpy
plots       pictures of the first three
"""
