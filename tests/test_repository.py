"""The doors of the repository: environment.yml, requirements, the Makefile, imports without network, Colab's first cell."""

import json
import os
import subprocess
import sys

import pytest

from tests.lessons import NOTEBOOKS, ROOT, code
from utils import notebook

MODULES = sorted(path.stem for path in (ROOT / "utils").glob("*.py") if path.stem != "__init__")
OFFLINE = """
import socket, sys
def refuse(*_): raise AssertionError("something reached for the network")
socket.socket.connect = socket.getaddrinfo = socket.create_connection = refuse
"""


def run(script: str, **environment: str) -> str:
    """What a fresh Python prints."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def requirements() -> list[str]:
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def name(requirement: str) -> str:
    return requirement.split(">")[0].split("=")[0].strip().lower().replace("_", "-")


def test_conda_installs_what_pip_installs():
    text = (ROOT / "environment.yml").read_text()
    assert "--requirement requirements.txt" in text
    assert "--constraint constraints.txt" in text
    assert "python>=3.11" in text


def test_every_requirement_has_a_tested_version():
    pinned = {name(line) for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert requirements()[-1] == "-e ."
    assert {name(line) for line in requirements()[:-1]} <= pinned


def test_what_colab_installs_is_what_the_course_requires():
    assert set(notebook.NEEDED.values()) <= set(requirements())


def test_make_alone_lists_the_commands():
    listed = subprocess.run(["make"], capture_output=True, text=True, cwd=ROOT).stdout
    assert all(any(line.startswith(target) and len(line) > 15 for line in listed.splitlines()) for target in
               ("venv", "lab", "test", "bench", "data", "lint"))  # fmt: skip


@pytest.mark.parametrize("module", MODULES)
def test_importing_a_module_needs_no_network(module):
    assert run(f"{OFFLINE}\nimport utils.{module}\nprint('fine')") == "fine\n"


def test_the_set_up_and_a_view_need_no_network_and_touch_no_seed():
    script = f"""{OFFLINE}
import torch
from utils import notebook, views
before = torch.get_rng_state()
device = notebook.setup()
drawn = views.attention(torch.eye(2)[None], ["a", "b"], ["0.0"]).data
assert torch.equal(before, torch.get_rng_state())
print(device, "unpkg" in drawn, "http" in drawn)"""
    said = run(script)
    assert all(word in said for word in ("Python 3", "torch 2", "transformer_lens 4", "device", "threads"))
    assert said.splitlines()[-1].endswith("False False")


def test_colab_installs_only_what_is_missing_and_pins_the_rest(monkeypatch):
    calls = []
    monkeypatch.setattr(notebook.importlib.util, "find_spec", lambda module: None if module == "circuitsvis" else module)

    def pip(command, check):
        constraints = command[command.index("-c") + 1]
        with open(constraints) as file:
            calls.append((command, file.read()))

    monkeypatch.setattr(notebook.subprocess, "run", pip)
    notebook.install_missing()
    [(command, pins)] = calls
    assert command[-1].startswith("circuitsvis")
    assert not any(word.startswith(("torch", "numpy")) for word in command)
    assert "torch==" in pins
    assert "numpy==" in pins


def test_nothing_is_installed_when_nothing_is_missing(monkeypatch):
    monkeypatch.setattr(notebook.subprocess, "run", lambda *_, **__: pytest.fail("nothing should be installed"))
    assert notebook.install_missing() is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_first_cells_run_in_colab(path, tmp_path):
    """An empty folder with a notebook, a stub of google.colab, and the course at an address that is a local clone."""
    clone, stub, folder = tmp_path / "clone", tmp_path / "stub", tmp_path / "content"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    startup = tmp_path / "ipython/profile_default/startup"
    for made in (stub / "google/colab", folder, startup):
        made.mkdir(parents=True)
    (stub / "google/colab/__init__.py").write_text("")
    (startup / "00.py").write_text("import google.colab")
    check = "import os, utils\nassert utils.__file__.startswith(os.path.join(os.getcwd(), 'course')), utils.__file__"
    cells = [{"cell_type": "code", "metadata": {}, "source": text, "outputs": [], "execution_count": None} for text in
             (*code(path)[:2], check)]  # fmt: skip
    (folder / path.name).write_text(json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 4}))
    environment = {
        **os.environ,
        "COURSE_REPOSITORY": str(clone),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "PYTHONPATH": str(stub),
    }
    command = [sys.executable, "-m", "nbconvert", "--to", "notebook", "--execute", "--stdout", path.name]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "device" in done.stdout
