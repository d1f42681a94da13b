"""The pages in a real browser: every chart drawn at three widths, dark and light; no console message, no request, no
serious fault by axe-core, no text over text.

    python -m benchmarks.page                                # pages of a made run, of a comparison, in both languages
    python -m benchmarks.page page.html other.html           # these pages
    python -m benchmarks.page --axe package/axe.min.js --out /tmp/screens

Needs Chromium (Debian: apt-get install chromium). `npm pack axe-core` brings axe-core. It is spoken to over a pipe,
with the protocol of its own developer tools; nothing but the files named is ever opened. Exit 1 where anything is
wrong.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WIDTHS = (390, 820, 1440)
SCHEMES = ("light", "dark")
PATIENCE_S = 120.0
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars"),
    "--remote-debugging-pipe",
)

# What a page must be, seen from within; a list of sentences, empty where all is well.
LOOK = """(() => {
  const wrong = [];
  const plots = [...document.querySelectorAll('svg.plot')].filter(s => s.getClientRects().length);
  const figures = document.querySelectorAll('figure').length;
  if (plots.length !== figures) wrong.push(`${plots.length} charts drawn of ${figures}`);
  for (const s of plots) {
    const name = s.closest('figure').id, box = s.getBoundingClientRect();
    if (box.width < 200 || box.height < 80) wrong.push(`${name} is ${box.width} × ${box.height}`);
    if (s.querySelectorAll('path, line, rect').length < 4) wrong.push(`${name} is empty`);
    const card = s.closest('figure').getBoundingClientRect();
    const texts = [...s.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    for (const [t, b] of texts)
      if (b.left < card.left - 1 || b.right > card.right + 1) wrong.push(`${name}: "${t}" leaves its card`);
    for (let i = 0; i < texts.length; i++) for (let j = i + 1; j < texts.length; j++) {
      const [a, p] = texts[i], [b, q] = texts[j];
      const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
      const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
      if (x > 2 && y > 4) wrong.push(`${name}: "${a}" over "${b}"`);
    }
    if (texts.length && Math.min(...texts.map(([, b]) => b.height)) < 7.5) wrong.push(`${name}: text below 7.5 px`);
  }
  const root = document.documentElement;
  if (root.scrollWidth > window.innerWidth + 1) wrong.push(`${root.scrollWidth} px wide in ${window.innerWidth}`);
  if (document.scripts.length) wrong.push('there is a script');
  return wrong;
})()"""
AXE = """axe.run(document, {resultTypes: ['violations']}).then(r => r.violations
  .filter(v => ['serious', 'critical'].includes(v.impact))
  .map(v => `${v.id}: ${v.help}: ${v.nodes.slice(0, 3).map(n => n.target.join(' ')).join(', ')}`))"""


class Browser:
    """Chromium behind a pipe: one command at a time, its events kept."""

    def __init__(self, process: subprocess.Popen[bytes], write: int, read: int) -> None:
        self._process, self._write, self._read = process, write, read
        self._number, self._left = 0, b""
        self.events: list[dict[str, Any]] = []

    def __call__(self, method: str, session: str | None = None, **params: Any) -> Any:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self._write, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            found = self._next()
            if found.get("id") == self._number:
                if "error" in found:
                    raise RuntimeError(f"{method}: {found['error']}")
                return found["result"]
            self.events.append(found)
        raise TimeoutError(method)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("the browser has gone")
            self._left += part
        line, self._left = self._left.split(b"\0", 1)
        found: dict[str, Any] = json.loads(line)
        return found

    def until(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())


@contextmanager
def browser() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        sys.exit("there is no Chromium here: apt-get install chromium")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()

    def place() -> None:  # the pipe is spoken on descriptors 3 and 4
        high_in, high_out = os.dup(theirs_in), os.dup(theirs_out)
        os.dup2(high_in, 3)
        os.dup2(high_out, 4)

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [path, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=place,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(theirs_in)
        os.close(theirs_out)
        try:
            yield Browser(process, ours_out, ours_in)
        finally:
            process.terminate()
            process.wait(20)


def look(chrome: Browser, page: Path, width: int, scheme: str, axe: str | None, out: Path | None) -> list[str]:
    """What is wrong with a page at this width and in this scheme."""
    target = chrome("Target.createTarget", url="about:blank")["targetId"]
    s = chrome("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    for room in ("Page", "Runtime", "Log", "Network"):
        chrome(f"{room}.enable", s)
    chrome("Emulation.setDeviceMetricsOverride", s, width=width, height=900, deviceScaleFactor=1, mobile=width < 500)
    chrome("Emulation.setEmulatedMedia", s, features=[{"name": "prefers-color-scheme", "value": scheme}])
    chrome.events.clear()
    url = page.resolve().as_uri()
    chrome("Page.navigate", s, url=url)
    chrome.until("Page.loadEventFired")

    def evaluate(code: str) -> Any:
        found = chrome("Runtime.evaluate", s, expression=code, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            return [f"it could not be looked at: {found['exceptionDetails'].get('text')}"]
        return found["result"].get("value")

    wrong = list(evaluate(LOOK))
    if out is not None:
        shot = chrome("Page.captureScreenshot", s, format="png", captureBeyondViewport=True)
        (out / f"{page.stem}-{width}-{scheme}.png").write_bytes(base64.b64decode(shot["data"]))
    for event in chrome.events:
        params = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                asked = params["request"]["url"]
                if asked != url and not asked.startswith("data:"):
                    wrong.append(f"it asked for {asked}")
            case "Runtime.consoleAPICalled" | "Runtime.exceptionThrown" | "Log.entryAdded":
                wrong.append(f"console: {json.dumps(params)[:300]}")
    if axe is not None:
        chrome("Runtime.evaluate", s, expression=axe)
        wrong += evaluate(AXE)
    chrome("Target.closeTarget", targetId=target)
    return wrong


def printed(chrome: Browser, page: Path, out: Path) -> int:
    """The page as PDF into `out`; how many bytes it has."""
    target = chrome("Target.createTarget", url=page.resolve().as_uri())["targetId"]
    s = chrome("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    chrome("Page.enable", s)
    time.sleep(1)
    found = base64.b64decode(chrome("Page.printToPDF", s, printBackground=True)["data"])
    (out / f"{page.stem}.pdf").write_bytes(found)
    chrome("Target.closeTarget", targetId=target)
    return len(found)


def made(folder: Path) -> list[Path]:
    """Pages of a made run and of two, in both languages."""
    from loadgen.cli.main import main as loadgen
    from tests.report.drawn import drawn_run

    hostile = "<img src=x onerror=alert(1)></script><script>alert(2)</script> \u202eevil\u202c \x00 \u05d0\u05d1"
    runs = [
        drawn_run(folder, name="a"),
        drawn_run(folder, name="b", slower=1.1),
        drawn_run(folder, name="hostile", message=hostile, models=(hostile, "llama"), levels=(1, 8, 64)),
        drawn_run(folder, name="failing", failing=1.0, levels=(1, 8)),
        drawn_run(folder, name="one", levels=(8,)),
    ]
    commands = {
        "run-en": ["report", f"{runs[0]}", "--gpus", "2", "--price", "3"],
        "run-zh": ["report", f"{runs[0]}", "--gpus", "2", "--price", "3", "--lang", "zh"],
        "hostile": ["report", f"{runs[2]}"],
        "failing": ["report", f"{runs[3]}"],
        "one": ["report", f"{runs[4]}"],
        "compare-en": ["compare", f"{runs[0]}", f"{runs[1]}", f"{runs[2]}", "--anyway"],
        "compare-zh": ["compare", f"{runs[0]}", f"{runs[1]}", "--lang", "zh"],
    }
    pages = []
    for name, command in commands.items():
        page = folder / f"{name}.html"
        try:
            loadgen([*command, "--html", str(page)])
        except SystemExit as ended:
            if not page.exists():
                sys.exit(f"{name}: {ended}")
        pages.append(page)
    return pages


def main() -> int:
    parser = argparse.ArgumentParser(description="The pages in a real browser.")
    parser.add_argument("pages", nargs="*", type=Path)
    parser.add_argument("--axe", type=Path, help="axe.min.js of axe-core")
    parser.add_argument("--out", type=Path, help="a folder for screenshots and prints")
    args = parser.parse_args()
    axe = args.axe.read_text() if args.axe else None
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
    bad = looks = 0
    with tempfile.TemporaryDirectory() as place, browser() as chrome:
        for page in args.pages or made(Path(place)):
            for width in WIDTHS:
                for scheme in SCHEMES:
                    wrong = look(chrome, page, width, scheme, axe, args.out)
                    looks += 1
                    bad += len(wrong)
                    print(f"{page.stem:<14}{width:>6} {scheme:<6}{'; '.join(wrong) or 'nothing wrong'}", flush=True)
            size = page.stat().st_size
            if args.out:
                print(f"{page.stem:<14}{size / 1e6:.2f} MB, {printed(chrome, page, args.out) / 1e6:.2f} MB as PDF")
            if size > 5_000_000:
                bad += 1
                print(f"{page.stem:<14}{size / 1e6:.1f} MB are above 5")
    print(f"{looks} looks, {bad} faults" + ("" if axe else "; axe-core was not given"))
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
