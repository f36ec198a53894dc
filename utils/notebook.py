"""What the first cell of every notebook calls: say where we are, and make pictures work there."""

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
import sys
import tempfile

NEEDED = {"transformer_lens": "transformer_lens>=4.3,<5", "circuitsvis": "circuitsvis>=1.43", "jaxtyping": "jaxtyping>=0.3"}


def setup() -> str:
    """Report versions, device and threads, put the scripts of pictures on the page, and return the device. Seeds nothing."""
    if in_colab():
        install_missing()
    import plotly.io as pio
    import torch
    from IPython.display import HTML, display

    from utils import views

    device = best_device()
    versions = " · ".join(f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformer_lens", "plotly"))
    print(f"Python {platform.python_version()} · {versions} · device {device} · {torch.get_num_threads()} threads")
    if not in_colab():
        display(HTML(views.bundle()))
        pio.renderers["page"] = views.Page()
        if "PLOTLY_RENDERER" not in os.environ:
            display(HTML(views.plotly_script()))
            pio.renderers.default = "page"
    return device


def in_colab() -> bool:
    return "google.colab" in sys.modules


def best_device() -> str:
    """cuda or mps where there is one, else cpu."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def install_missing() -> None:
    """Install what is not there, with everything that is there pinned: torch and numpy stay as they are."""
    missing = [requirement for module, requirement in NEEDED.items() if importlib.util.find_spec(module) is None]
    if not missing:
        return
    print(f"Installing {', '.join(missing)} …")
    pins = [f"{package.name}=={package.version}" for package in importlib.metadata.distributions() if package.name]
    with tempfile.TemporaryDirectory() as folder:
        constraints = os.path.join(folder, "constraints.txt")
        with open(constraints, "w") as file:
            file.write("\n".join(sorted(set(pins))))
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "-c", constraints, *missing], check=True)
    importlib.invalidate_caches()
