# SPDX-License-Identifier: MIT
"""The paper's experiments once more: what is trained, by which methods, and what comes out.

===============  =================================================================================
``settings``     models and methods by name, which go together, and how much a run takes
``accuracy``     one training on real ranks, by a script of ``examples``
``shaped``       the same models' steps on links of 1 Gbit/s
``resuming``     results are kept as they come, so that an interrupted run goes on where it was
``rows``         from single runs to the rows of the tables
``page``         the tables in Markdown
``plots``        the pictures
``summary``      the tables of the README
===============  =================================================================================

Importing it lets the modules of ``examples`` be imported.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "examples"))
