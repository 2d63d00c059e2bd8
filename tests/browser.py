"""Pages in a real browser, where there is one."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Any

from tools import browser_flags, browser_profile, need
from waiting import PATIENCE

__all__ = ["Page", "open_page"]


def open_page(page: Path | str, *, screenshot: Path | None = None) -> tuple[str, list[str]]:
    """The page's document after its scripts have run, and what it wrote to the console."""
    address = page if isinstance(page, str) else page.resolve().as_uri()
    with browser_profile() as profile:
        command = [need("browser"), *browser_flags(profile), "--enable-logging=stderr"]
        command += [f"--screenshot={screenshot}", "--window-size=1120,1600"] if screenshot else ["--dump-dom"]
        result = subprocess.run(
            [*command, "--virtual-time-budget=3000", address], capture_output=True, text=True, timeout=2 * PATIENCE
        )
    return result.stdout, [line for line in result.stderr.splitlines() if "CONSOLE" in line]


def _moved(descriptor: int) -> int:
    """The same file under a descriptor from 10 on."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return moved


class Page:
    """A page that a test works with, over the pipes that Chromium has for that. No name resolves in it: the network is off.

    :ivar console: what the page wrote to its console, and what it threw

    >>> with Page("http://127.0.0.1:8000/playground") as page:    # doctest: +SKIP
    ...     page.value("document.title")
    """

    def __init__(self, address: str, *, width: int = 1400, height: int = 1000, dark: bool = False) -> None:
        browser = need("browser")
        self.console: list[str] = []
        self._number = 0
        self._session = ""
        self._folder = browser_profile()
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()
        # away from 3 and 4, which the shell below puts in their places
        theirs_in, theirs_out = _moved(theirs_in), _moved(theirs_out)
        no_network = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        flags = [*browser_flags(self._folder.name), "--remote-debugging-pipe", no_network, "about:blank"]
        # Chromium reads its commands from descriptor 3 and answers on 4
        script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out} {theirs_in}<&- {theirs_out}>&-'
        self._process = subprocess.Popen(
            ["bash", "-c", script, "browser", browser, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(theirs_in, theirs_out),
        )
        os.close(theirs_in)
        os.close(theirs_out)
        self._answers = os.fdopen(self._in, "rb", buffering=0)
        self._pending = b""
        try:
            self._open(address, width, height, dark)
        except BaseException:
            self.close()
            raise

    def _open(self, address: str, width: int, height: int, dark: bool) -> None:
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "DOM"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command of Chromium's protocol, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer)
                result: dict[str, Any] = answer["result"]
                return result

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            poll = select.poll()
            poll.register(self._in, select.POLLIN)
            assert poll.poll(5 * 1000 * PATIENCE), "the browser does not answer"
            piece = self._answers.read(2**20)
            assert piece, "the browser has ended"
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        parameters = message.get("params", {})
        if message.get("method") == "Runtime.consoleAPICalled":
            self.console.append(str([one.get("value") for one in parameters["args"]]))
        elif message.get("method") == "Runtime.exceptionThrown":
            self.console.append(str(parameters["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded":
            self.console.append(str(parameters["entry"]["text"]))
        return message

    def value(self, expression: str) -> Any:
        """What an expression is on the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = PATIENCE) -> None:
        """Wait until *condition* holds on the page; *seconds* is only there to end a test that hangs."""
        found = self.value(
            f"""new Promise(done => {{
              const began = performance.now();
              const look = () => {{
                if ({condition}) done('yes');
                else if (performance.now() - began > {1000 * seconds}) done(document.body.innerText);
                else setTimeout(look, 50);
              }};
              look();
            }})"""
        )
        assert found == "yes", f"{condition} does not become true: {found}"

    def choose(self, selector: str, *files: Path) -> None:
        """Choose files in a field for files."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", nodeId=node, files=[str(file) for file in files])

    def click(self, selector: str) -> None:
        """Click on something."""
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def screenshot(self, file: Path) -> None:
        """The whole page as a PNG file."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        file.write_bytes(base64.b64decode(data))

    def close(self) -> None:
        """End the browser."""
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        self._answers.close()
        self._folder.cleanup()

    def __enter__(self) -> Page:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
