# SPDX-License-Identifier: MIT
"""Tables inside of written pages, which scripts renew."""

import re
import sys
from collections.abc import Mapping
from pathlib import Path


def renew(path: Path, tables: Mapping[str, str]) -> None:
    """Replaces what stands between the marks of each table, ``<!-- NAME -->`` and ``<!-- end -->``.

    Ends the program where the page has no place for a table or more than one; nothing is written.
    """
    path.write_text(renewed(path.read_text(), tables))


def renewed(page: str, tables: Mapping[str, str]) -> str:
    for name, table in tables.items():
        page, count = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- end -->)",
            lambda found, table=table: f"{found[1]}\n{table}\n\n{found[2]}",
            page,
            flags=re.S,
        )
        if count != 1:
            sys.exit(f"the page has {count} places for the table {name!r}, but must have one")
    return page
