"""The files in `data/`: where they are, and whether they are whole."""

import hashlib
import json
from pathlib import Path

DATA = Path(__file__).parent.parent / "data"
REMEDY = "`git checkout data` brings it back, `make data` makes it again."


def verified(file: str) -> Path:
    """The path of a file in `data/`, once its sha256 is what the manifest says."""
    path, expected = DATA / file, read_manifest().get(file, {}).get("sha256")
    if not path.is_file() or expected is None:
        raise FileNotFoundError(f"data/{file} is missing: {REMEDY}")
    if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
        raise ValueError(f"data/{file} is damaged: {REMEDY}")
    return path


def read_manifest() -> dict[str, dict]:
    """What `data/build.py` wrote of each file: its sha256, its recipe, its losses."""
    try:
        return dict(json.loads((DATA / "manifest.json").read_text()))
    except FileNotFoundError as error:
        raise FileNotFoundError(f"data/manifest.json is missing: {REMEDY}") from error
    except ValueError as error:
        raise ValueError(f"data/manifest.json is damaged: {REMEDY}") from error
