"""Drives a headless Chromium over its DevTools protocol: open, look, type, press."""

import asyncio
import itertools
from pathlib import Path
from typing import Any, Self

import aiohttp

SECONDS = 20.0
_KEYS = {"Enter": 13, "Escape": 27}


class Browser:
    """``async with Browser(executable, profile) as browser``; ``profile`` is an empty folder."""

    def __init__(self, executable: str, profile: Path) -> None:
        self._executable = executable
        self._profile = profile
        self._ids = itertools.count(1)

    async def __aenter__(self) -> Self:
        flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-port=0"]
        self._process = await asyncio.create_subprocess_exec(
            self._executable,
            *flags,
            f"--user-data-dir={self._profile}",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        port = await self._port()
        self._client = aiohttp.ClientSession()
        async with self._client.get(f"http://127.0.0.1:{port}/json/list") as response:
            (page,) = [t for t in await response.json() if t["type"] == "page"]
        self._socket = await self._client.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.close()
        self._process.terminate()
        await self._process.wait()

    async def open(self, url: str) -> None:
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def run(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until the expression is true; AssertionError naming it after a while."""
        try:
            async with asyncio.timeout(SECONDS):
                while not await self.run(expression):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            page = await self.run("document.body.innerText")
            raise AssertionError(f"never true: {expression}; the page says: {page}") from None

    async def type(self, text: str) -> None:
        await self.call("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        event = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        text = {"text": "\r"} if key == "Enter" else {}
        await self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        await self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a DevTools command; events meanwhile are skipped."""
        number = next(self._ids)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        while (message := await self._socket.receive_json(timeout=SECONDS)).get("id") != number:
            pass
        assert "error" not in message, message
        result: dict[str, Any] = message["result"]
        return result

    async def _port(self) -> int:
        """Chromium writes it into the profile once it listens."""
        path = self._profile / "DevToolsActivePort"
        async with asyncio.timeout(SECONDS):
            while not path.exists() or not path.read_text():
                await asyncio.sleep(0.05)
        return int(path.read_text().splitlines()[0])
