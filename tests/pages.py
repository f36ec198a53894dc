"""Notebooks made, run, exported and served for the tests in a browser."""

import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import nbformat
from nbconvert import HTMLExporter
from nbconvert.preprocessors import ExecutePreprocessor
from traitlets.config import Config

from tests.browser import wait_for

OFFLINE = {"require_js_url": "", "mathjax_url": "", "jquery_url": ""}


def notebook(folder: Path, cells: list[str]) -> Path:
    """A notebook with these code cells."""
    path = folder / "pictures.ipynb"
    node = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    node.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(node, path)
    return path


def exported(path: Path) -> Path:
    """Run a notebook from the course's folder and export it to a page that needs no network."""
    node = nbformat.read(path, as_version=4)
    ExecutePreprocessor(timeout=300, kernel_name="python3").preprocess(node, {"metadata": {"path": str(Path.cwd())}})
    body, _ = HTMLExporter(config=Config(HTMLExporter=OFFLINE)).from_notebook_node(node)
    page = path.with_suffix(".html")
    page.write_text(body, encoding="utf-8")
    return page


@contextmanager
def lab(folder: Path) -> Iterator[str]:
    """JupyterLab on this folder, with cells drawn also where one has not scrolled to; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = folder / "settings" / "@jupyterlab" / "notebook-extension"
    settings.mkdir(parents=True)
    (settings / "tracker.jupyterlab-settings").write_text(json.dumps({"windowingMode": "none"}))
    options = ["--no-browser", "--allow-root", f"--port={port}", "--IdentityProvider.token=", "--expose-app-in-browser"]
    command = [sys.executable, "-m", "jupyterlab", *options, f"--ServerApp.root_dir={folder}", "--LabApp.news_url="]
    environment = {**os.environ, "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"), "PYTHONPATH": str(Path.cwd())}
    with open(folder / "lab.log", "w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(lambda: answers(address + "/api"), f"JupyterLab to start; see {folder / 'lab.log'}", 90)
        yield address
    finally:
        server.terminate()
        server.wait()


def answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def hosts(page: Path) -> set[str]:
    """Addresses from which a page would load something."""
    return set(
        re.findall(r'<(?:script|link|img|iframe)[^>]*(?:src|href)="(https?://[^"]+)"', page.read_text(encoding="utf-8"))
    )
