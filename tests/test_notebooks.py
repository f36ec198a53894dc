"""Notebooks as shipped: stripped, short-celled, linked, and with exercises whose solutions pass."""

import re
import statistics
import tomllib

import pytest

from tests.lessons import NOTEBOOKS, ROOT, cells, code, exercises, prose

EXERCISES = [exercise for path in NOTEBOOKS for exercise in exercises(path)]
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
each_exercise = pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.name)


def test_the_first_lessons_are_there():
    assert [path.stem for path in NOTEBOOKS][:2] == ["00_start_here", "02_zero_layers"]
    assert sum(exercise.notebook == "02_zero_layers" for exercise in EXERCISES) >= 2


@each_notebook
def test_outputs_and_counts_are_stripped(path):
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells(path, "code"))


@each_notebook
def test_cells_are_short(path):
    lines = [len([line for line in cell.splitlines() if line.strip()]) for cell in code(path)]
    assert max(lines) <= 25
    assert statistics.median(lines) <= 8


@each_notebook
def test_the_first_cell_is_the_same_everywhere(path):
    assert code(path)[0] == code(NOTEBOOKS[0])[0]
    assert "notebook.setup()" in code(path)[0]


@each_notebook
def test_the_anatomy_is_kept(path):
    text = prose(path)
    assert text.startswith("# ")
    assert all(part in text for part in ("**You will be able to**", "**Time**", "**Predict", "**What we see.**", "## Summary"))
    assert all(part in text for part in ("**For a room.**", "**Nobody knows yet**", "**Next:**", "★"))
    assert any("assert " in cell for cell in code(path))


@pytest.mark.parametrize("path", [*NOTEBOOKS, ROOT / "README.md", ROOT / "data/README.md"], ids=lambda path: path.name)
def test_links_lead_to_files_that_exist(path):
    text = path.read_text() if path.suffix == ".md" else prose(path)
    links = [link for link in re.findall(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"", text) for link in link if link]
    local = [link.split("#")[0] for link in links if not link.startswith(("http", "#"))]
    assert all((path.parent / link).exists() for link in local), local


def test_the_address_of_the_course_is_the_same_in_all_places():
    address = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    slug = address.removeprefix("https://github.com/")
    badges = re.findall(
        r"colab\.research\.google\.com/github/(.+?)/blob/main/notebooks/(\w+)\.ipynb", (ROOT / "README.md").read_text()
    )
    assert sorted(badges) == [(slug, path.stem) for path in NOTEBOOKS]
    assert all(f":-{address}}}" in code(path)[0] for path in NOTEBOOKS)


@each_exercise
def test_a_stub_is_not_attempted_yet(exercise, capsys):
    assert exercise.check()(exercise.function("stub")) is False
    assert "not attempted yet" in capsys.readouterr().out


@each_exercise
def test_a_solution_passes_its_check(exercise, capsys):
    assert exercise.check()(exercise.function("solution")) is True
    assert capsys.readouterr().out.startswith(f"✓ {exercise.name}")


@each_exercise
def test_an_exercise_has_difficulty_minutes_and_hint(exercise):
    text = prose(ROOT / "notebooks" / f"{exercise.notebook}.ipynb")
    headings = re.findall(r"^### Exercise .+\([⬤○]{3} · \d+ minutes · (?:core|extra)", text, re.MULTILINE)
    checked = [other for other in EXERCISES if other.notebook == exercise.notebook]
    assert len(headings) >= len(checked)
    assert text.count("<summary>Hint</summary>") >= len(checked)
