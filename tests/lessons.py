"""What tests need to know of the notebooks: their cells, exercises and solutions."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path, kind: str) -> list[dict]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == kind]


def source(cell: dict) -> str:
    return "".join(cell["source"])


def code(path: Path, tag: str = "") -> list[str]:
    """The code cells of a notebook, or those with a tag."""
    return [source(cell) for cell in cells(path, "code") if not tag or tag in cell["metadata"].get("tags", [])]


def prose(path: Path) -> str:
    return "\n\n".join(source(cell) for cell in cells(path, "markdown"))


@dataclass(frozen=True)
class Exercise:
    """A stub and its solution, both as source, with the imports that they may use."""

    notebook: str
    name: str
    imports: str
    stub: str
    solution: str

    def function(self, which: str):
        """The stub's or the solution's function."""
        namespace: dict = {}
        exec(self.imports + "\n" + getattr(self, which), namespace)
        return namespace[self.name]

    def check(self):
        namespace: dict = {}
        exec(self.imports, namespace)
        return namespace[f"check_{self.name}"]


def exercises(path: Path) -> list[Exercise]:
    """Every function that a cell tagged `check` checks."""
    imports = "\n".join(line for cell in code(path, "setup")[1:] for line in cell.splitlines() if "import" in line)
    names = [re.search(r"check_(\w+)\(\1\)", cell)[1] for cell in code(path, "check")]
    stubs = {name: cell for name in names for cell in code(path, "exercise") if f"def {name}(" in cell}
    return [Exercise(path.stem, name, imports, stubs[name], solution(path, name)) for name in names]


def solution(path: Path, name: str) -> str:
    """The one code block under a `Solution` that defines this function."""
    folded = re.findall(r"<details><summary>Solution</summary>(.*?)</details>", prose(path), re.DOTALL)
    blocks = [block for text in folded for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]
    [block] = [block for block in blocks if f"def {name}(" in block]
    return block
