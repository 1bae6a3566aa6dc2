"""Chromium, driven by the WebDriver protocol."""

import base64
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from installed import program

from dpdpca_cli.federation.processes import free_port

# No traffic of the browser's own, and every name but this machine's leads nowhere.
QUIET = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


@dataclass(frozen=True)
class Browser:
    """One session."""

    session: httpx.Client

    def open(self, url: str) -> None:
        self._send("url", {"url": url})

    @property
    def url(self) -> str:
        return str(self._get("url"))

    @property
    def source(self) -> str:
        return str(self._get("source"))

    def resize(self, width: int, height: int) -> None:
        self._send("window/rect", {"width": width, "height": height})

    def pretend_screen(self, width: int, height: int, *, dark: bool = False) -> None:
        """A screen that may be narrower than any window of this browser."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self._command("Emulation.setDeviceMetricsOverride", metrics)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._command("Emulation.setEmulatedMedia", {"features": [scheme]})

    def ask(self, script: str) -> Any:
        """What a script of the form `return …` gives in the page."""
        return self._send("execute/sync", {"script": script, "args": []})

    def wait_for(self, script: str, limit_seconds: float = 20) -> None:
        deadline = time.monotonic() + limit_seconds
        while not self.ask(script):
            assert time.monotonic() < deadline, f"never true: {script}"
            time.sleep(0.2)

    def wait_for_url(self, url: str, limit_seconds: float = 30) -> None:
        deadline = time.monotonic() + limit_seconds
        while self.url != url:
            assert time.monotonic() < deadline, f"the browser is at {self.url} instead of {url}"
            time.sleep(0.1)

    def click(self, css: str) -> None:
        """Click what a CSS selector finds, as a person would."""
        self._send(f"element/{self._find(css)}/click", {})

    def fill(self, css: str, text: str) -> None:
        """Replace the text of a field."""
        field = self._find(css)
        self._send(f"element/{field}/clear", {})
        self._send(f"element/{field}/value", {"text": text})

    def save_picture(self, path: Path) -> None:
        """The whole page, however long it is."""
        box = self._command("Page.getLayoutMetrics", {})["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": box["width"], "height": box["height"], "scale": 1}
        shot = self._command("Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip})
        path.write_bytes(base64.b64decode(shot["data"]))

    def complaints(self) -> list[str]:
        """What the console said since it was last asked: refused loads and failed scripts among it."""
        return [entry["message"] for entry in self._send("se/log", {"type": "browser"})]

    def _find(self, css: str) -> str:
        return str(self._send("element", {"using": "css selector", "value": css})[_ELEMENT])

    def _command(self, name: str, parameters: dict[str, Any]) -> Any:
        return self._send("goog/cdp/execute", {"cmd": name, "params": parameters})

    def _get(self, path: str) -> Any:
        answer = self.session.get(path)
        answer.raise_for_status()
        return answer.json()["value"]

    def _send(self, path: str, body: dict[str, Any]) -> Any:
        answer = self.session.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json()["value"]


@contextmanager
def started_browser(profile: Path, *, scripts: bool = True) -> Iterator[Browser]:
    """A browser with a fresh profile; without `scripts`, pages run none."""
    driver = program("chromedriver", "Debian: chromium-driver")
    chromium = program("chromium", "Debian: chromium")
    port = free_port()
    options: dict[str, Any] = {"binary": chromium, "args": [*QUIET, f"--user-data-dir={profile}"]}
    if not scripts:
        options["prefs"] = {"profile.managed_default_content_settings.javascript": 2}
    wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
    process = subprocess.Popen(
        [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with httpx.Client(timeout=60, trust_env=False) as client:
            root = f"http://127.0.0.1:{port}"
            deadline = time.monotonic() + 20
            while not answers(f"{root}/status"):
                assert time.monotonic() < deadline, "the driver did not start"
                time.sleep(0.1)
            answer = client.post(f"{root}/session", json={"capabilities": {"alwaysMatch": wanted}})
            answer.raise_for_status()
            client.base_url = httpx.URL(f"{root}/session/{answer.json()['value']['sessionId']}/")
            try:
                yield Browser(client)
            finally:
                # The driver does not end the browser by itself. It knows no path that ends with a slash.
                client.delete(str(client.base_url).rstrip("/")).raise_for_status()
    finally:
        process.terminate()
        process.wait(20)


def answers(url: str) -> bool:
    """Whether something answers well at `url`."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
