"""Files that another process may read at any time."""

import json
import os
from pathlib import Path


def write_rows(folder: Path, rows, name: str = "rows.json") -> None:
    """Write the rows as JSON, whole or not at all."""
    made = folder / f".{name}.part"
    made.write_text(json.dumps(rows))
    os.replace(made, folder / name)
