"""A headless Chromium for tests and the gallery, driven over its own protocol; the network beyond this machine is cut."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import websocket

NAMES = "chromium", "chromium-browser", "google-chrome"
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-port=0"),
    *("--remote-allow-origins=*", "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1 , EXCLUDE localhost"),
)


def found() -> str | None:
    """Chromium's path: from $CHROMIUM, or one of the usual names."""
    return os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """`with Browser() as page: page.open(url); page.click("button")`. It remembers errors and requests that went abroad."""

    def __init__(self, width: int = 1200, height: int = 900):
        self.size = f"--window-size={width},{height}"

    def __enter__(self) -> "Browser":
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # it may still be writing when it is killed
        command = [found(), *FLAGS, self.size, f"--user-data-dir={self.folder.name}", "about:blank"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port_file = Path(self.folder.name) / "DevToolsActivePort"
        wait_for(lambda: port_file.exists() and port_file.read_text().count("\n"), "Chromium to start", 60)
        port = port_file.read_text().splitlines()[0]
        pages = json.load(urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list"))
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        self.socket = websocket.create_connection(address, timeout=120)
        self.count, self.errors, self.abroad = 0, [], []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *error) -> None:
        self.socket.close()
        self.process.kill()
        self.process.wait()
        self.folder.cleanup()

    def send(self, method: str, **params) -> dict:
        """Call and wait for the answer; what happens in between is noted."""
        self.count += 1
        self.socket.send(json.dumps({"id": self.count, "method": method, "params": params}))
        while True:
            message = json.loads(self.socket.recv())
            if message.get("id") == self.count:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            self.note(message.get("method"), message.get("params", {}))

    def note(self, event: str, params: dict) -> None:
        if event == "Runtime.exceptionThrown":
            self.errors.append(params["exceptionDetails"].get("exception", {}).get("description", "exception"))
        if event == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.errors.append(str([argument.get("value") for argument in params["args"]]))
        if event == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"] + " " + params["entry"].get("url", ""))
        if event == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:", "http://127.0.0.1", "http://localhost", "ws://")):
                self.abroad.append(url)

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        wait_for(lambda: self.run("document.readyState") == "complete", f"{url} to load", 60)

    def run(self, script: str) -> object:
        """The value of a JavaScript expression."""
        answer = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", script))
        return answer["result"].get("value")

    def wait(self, script: str, seconds: float = 30) -> None:
        wait_for(lambda: self.run(script), script, seconds)

    def box(self, selector: str, index: int = 0) -> dict[str, float]:
        """Where an element is, after scrolling to it."""
        element = f"document.querySelectorAll({json.dumps(selector)})[{index}]"
        self.run(f"{element}.scrollIntoView({{block: 'center', behavior: 'instant'}})")
        return self.run(f"(({{x, y, width, height}}) => ({{x, y, width, height}}))({element}.getBoundingClientRect())")

    def hover(self, selector: str, index: int = 0) -> tuple[float, float]:
        box = self.box(selector, index)
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector: str, index: int = 0) -> None:
        x, y = self.hover(selector, index)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def shot(self, selector: str, index: int = 0) -> bytes:
        """A PNG of one element."""
        box = self.box(selector, index)
        scroll = self.run("[window.scrollX, window.scrollY]")
        clip = {**box, "x": box["x"] + scroll[0], "y": box["y"] + scroll[1], "scale": 1}
        return base64.b64decode(self.send("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"])

    def colours(self, png: bytes) -> int:
        """How many colours a picture has; a blank one has one."""
        source = json.dumps("data:image/png;base64," + base64.b64encode(png).decode())
        return self.run(f"""(async () => {{
            const image = new Image(); image.src = {source}; await image.decode();
            const canvas = new OffscreenCanvas(image.width, image.height), context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            return new Set(new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer)).size }})()""")


def wait_for(ready: Callable[[], object], what: str, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise TimeoutError(f"Waited {seconds:g} s in vain for: {what}")
        time.sleep(0.05)
