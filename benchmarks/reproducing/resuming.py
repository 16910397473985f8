# SPDX-License-Identifier: MIT
"""Results are kept one by one, so that an interrupted run goes on where it was."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

Record = dict[str, Any]


class Kept:
    """A folder of finished jobs, each a file of JSON with the order that it came from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def get(self, name: str, order: Record) -> Any:
        """The result of this very order, or None: with other settings it is to be done again."""
        path = self._path(name)
        if not path.exists():
            return None
        kept = json.loads(path.read_text())
        # The order as it comes back from JSON, where tuples are lists.
        return kept["result"] if kept["order"] == json.loads(json.dumps(order)) else None

    def get_or_do(self, name: str, order: Record, do: Callable[[], Any]) -> Any:
        result = self.get(name, order)
        if result is None:
            result = do()
            self._put(name, order, result)
        return result

    def log(self, name: str) -> Path:
        """Where a job may write what it has to say."""
        return self.folder / f"{name}.log"

    def logs(self, names: Iterable[str]) -> str:
        """What these jobs had to say, one behind the other."""
        said = {name: self.log(name) for name in names}
        return "\n".join(
            f"==> {name} <==\n{path.read_text()}" for name, path in said.items() if path.exists()
        )

    def _put(self, name: str, order: Record, result: Any) -> None:
        # Replaced as a whole: a file that is there is complete, whatever ends this process.
        unfinished = self.folder / f"{name}.unfinished"
        unfinished.write_text(json.dumps({"order": order, "result": result}, allow_nan=False))
        unfinished.replace(self._path(name))

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"
