"""Does the log agree with the server's own counters? A table of runs against a real vLLM, to be read by a person.

    python -m benchmarks.real_vllm http://127.0.0.1:8100 [CASE…]

Each case is one `loadgen run` or `sweep`. The server's /metrics is read before its preflight and after its end, once
the server is idle; nobody else may use the server meanwhile. `log` and `server` must be equal: requests that were
answered (and not cut), prompt tokens, output tokens. The lengths are those of the measured ok requests: the largest
deviation of an input from the length asked for, the shares of inputs and of outputs exactly as long as asked for. Exits
with 1 where a count differs. Cases marked * go through a proxy that knows no /tokenize, so that exact lengths have to
be learnt from usage. Others go through one that ends TLS, or that holds answers back: the report must name the latter,
and nothing else. Under `bursts` is what the log shows, the events of a burst x the ms from one to the next, with a "?"
where the report keeps it to itself because the client was the limit.

What vLLM counts (0.32): with n > 1 each choice as a request with the prompt's tokens again; an aborted request in no
`request_success_total`, not even under `abort`, but its prompt and the tokens generated until then in the token
counters.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.proxies import Proxy, start
from loadgen.analysis import summarise_run
from loadgen.analysis.summary import summarise
from loadgen.log.columns import columns
from loadgen.log.store import Run, open_run
from loadgen.records import Record
from loadgen.results import Bursts, Slo

PROXIES = {
    "untold": Proxy(b"POST /tokenize ", b"POST /unknown_ "),
    "a proxy": Proxy(),
    "tls": Proxy(tls=True),
    "4 KB": Proxy(hold_ms=60_000, hold_bytes=4096),
    "50 ms": Proxy(hold_ms=50),
    "200 ms": Proxy(hold_ms=200),
    "all": Proxy(hold_ms=60_000),
}
RANGES = ["--input-len", "20-400", "--output-len", "2-16"]
SHAPE = ["--input-len", "50", "--output-len", "24"]
LONG = ["--input-len", "50", "--output-len", "256", "--requests", "32"]
TEXTS = ["The sea was calm that night.", {"prompt": "Count the stars:", "output_len": 40}, "One line\nand another"]
MESSAGES = [
    {"messages": [{"role": "user", "content": "Name a river."}], "max_tokens": 12},
    {
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "And a sea?"}],
        "output_len": 20,
    },
]


@dataclass(frozen=True)
class Case:
    """`args` after the URL; `file` is the content of a prompts file; `choices` is n; `differs` says why output counts
    may differ from the server's, if they may; `code` is an exit code that must come: without one, a client that was the
    limit (4) or a model that says nothing (1) is no fault here."""

    name: str
    args: list[str]
    verb: str = "run"
    file: list[object] | None = None
    choices: int = 1
    differs: str = ""
    code: int | None = None
    through: str = ""  # a proxy


CASES = [
    Case("chat", ["-c", "8", "--requests", "120", *SHAPE]),
    Case("completions", ["--endpoint", "completions", "-c", "8", "--requests", "120", *SHAPE]),
    Case("sweep chat", ["--levels", "1,4,16", "--requests", "64", "--slo", "ttft_p95=5s", *SHAPE], "sweep"),
    Case("sweep completions", ["--endpoint", "completions", "--max-level", "16", "--effort", "quick", "--slo",
                               "tpot_p95=1s", "--max-time", "90s", *SHAPE], "sweep"),
    Case("ranges", ["-c", "8", "--requests", "120", "--input-len", "20-200", "--output-len", "1-48"]),
    Case("long input", ["-c", "4", "--requests", "24", "--input-len", "1500", "--output-len", "16"]),
    *(
        Case(f"exact {endpoint}{' *' if blind else ''}",
             ["--endpoint", endpoint, "-c", "16", "--requests", "1000", *RANGES], through="untold" if blind else "")
        for blind in (False, True) for endpoint in ("chat", "completions")
    ),
    Case("exact token ids", ["--endpoint", "completions", "--token-ids", "-c", "16", "--requests", "1000", *RANGES]),
    Case("one token", ["-c", "8", "--requests", "60", "--input-len", "50", "--output-len", "1"]),
    Case("natural length", ["-c", "8", "--requests", "60", "--natural-length", *SHAPE]),
    Case("temperature", ["-c", "8", "--requests", "60", "--temperature", "0", "--top-p", "0.9", *SHAPE]),
    Case("texts", ["-c", "4", "--requests", "30", "--output-len", "16"], file=[*TEXTS]),
    Case("texts completions", ["--endpoint", "completions", "-c", "4", "--requests", "30", "--output-len", "16"],
         file=[*TEXTS]),
    Case("bodies", ["-c", "4", "--requests", "30"], file=[*MESSAGES]),
    Case("n=2", ["-c", "4", "--requests", "30", "--extra-body", '{"n": 2}', *SHAPE],
         choices=2),
    Case("n=2 completions", ["--endpoint", "completions", "-c", "4", "--requests", "30", "--extra-body", '{"n": 2}',
                             *SHAPE], choices=2),
    Case("logprobs", ["-c", "4", "--requests", "30", "--extra-body", '{"logprobs": true, "top_logprobs": 3}', *SHAPE]),
    Case("token ids", ["-c", "4", "--requests", "30", "--extra-body", '{"return_token_ids": true}', *SHAPE]),
    Case("no usage", ["-c", "4", "--requests", "30", "--extra-body",
                      '{"stream_options": {"include_usage": false, "continuous_usage_stats": false}}', *SHAPE],
         differs="counted by events"),
    Case("cut", ["-c", "8", "--max-time", "3s", "--input-len", "50", "--output-len", "1900"], differs="cut"),
    Case("wrong model", ["-c", "4", "--requests", "8", "--model", "no-such-model", *SHAPE], code=3),
    Case("too long", ["-c", "4", "--requests", "8", "--input-len", "2040", "--output-len", "128"], code=3),
    *(Case(f"c={c}", ["-c", str(c), *LONG]) for c in (1, 4, 16, 64)),
    *(
        Case(f"{name} c={c}", ["-c", str(c), *LONG], through=name)
        for name in ("a proxy", "4 KB", "50 ms", "200 ms", "all") for c in (2, 16)
    ),
    Case("tls c=2", ["--insecure", "-c", "2", *LONG], through="tls"),
    Case("tls c=16", ["--insecure", "-c", "16", *LONG], through="tls"),
    Case("200 ms n=2", ["-c", "4", "--extra-body", '{"n": 2}', *LONG], choices=2,
         through="200 ms"),
]  # fmt: skip


@dataclass(frozen=True)
class Counters:
    """vLLM's own counts since it started."""

    finished: Counter[str]
    prompt: int
    generation: int

    def since(self, before: Counters) -> Counters:
        finished = Counter({k: n - before.finished[k] for k, n in self.finished.items() if n != before.finished[k]})
        return Counters(finished, self.prompt - before.prompt, self.generation - before.generation)


def scrape(base: str) -> Counters:
    """The counters once the server is idle."""
    while True:
        with urllib.request.urlopen(f"{base}/metrics", timeout=10) as answer:
            text = answer.read().decode()
        lines = re.findall(r"^vllm:(\w+)\{(.*)\} ([0-9.e+]+)$", text, re.MULTILINE)
        value = {name: 0.0 for name, _, _ in lines}
        finished: Counter[str] = Counter()
        for name, labels, number in lines:
            value[name] += float(number)
            reason = re.search(r'finished_reason="(\w+)"', labels)
            if name == "request_success_total" and reason:
                finished[reason[1]] += int(float(number))
        if value["num_requests_running"] + value["num_requests_waiting"] == 0:
            return Counters(finished, int(value["prompt_tokens_total"]), int(value["generation_tokens_total"]))
        time.sleep(0.2)


def run(base: str, case: Case, folder: Path) -> tuple[int, Path | None, str]:
    """→ the exit code, the run folder if there is one, and what was said on stderr."""
    args = list(case.args)
    if case.file is not None:
        prompts = folder / "prompts.jsonl"
        prompts.write_text("".join(json.dumps(line) + "\n" for line in case.file))
        args += ["--prompts", str(prompts)]
    command = [sys.executable, "-m", "loadgen", case.verb, base, *args, "-o", str(folder), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True)
    runs = [path.parent for path in folder.glob("*/manifest.json")]
    return done.returncode, runs[0] if runs else None, done.stderr.strip()


def deviation(records: list[Record]) -> str:
    shares = [
        r.input_tokens.server / r.input_tokens.asked - 1
        for r in records
        if r.input_tokens.server is not None and r.input_tokens.asked
    ]
    return f"{max(shares, key=abs):+.1%}" if shares else "-"


def exact_input(records: list[Record]) -> str:
    both = [(r.input_tokens.asked, r.input_tokens.server) for r in records if r.input_tokens.asked]
    return f"{sum(a == n for a, n in both) / len(both):.1%}" if both else "-"


def exact(records: list[Record]) -> str:
    both = [(r.output_tokens.asked, r.output_tokens.count) for r in records if r.output_tokens.asked]
    return f"{sum(a == n for a, n in both) / len(both):.1%}" if both else "-"


def bursts_of(run: Run) -> tuple[Bursts | None, bool]:
    """The bursts that the log of a run of one step shows, and whether the report can speak of them."""
    logged = columns(run.records())
    limited = any(step.client_limit for step in summarise_run(logged, Slo(), run.observations))
    return summarise(logged, 1, Slo()).bursts, not limited


def main() -> int:
    base = sys.argv[1].rstrip("/")
    chosen = [case for case in CASES if not sys.argv[2:] or case.name in sys.argv[2:]]
    head = f"{'case':<18} {'exit':>4} {'requests log/server':>20} {'prompt tokens log/server':>25}"
    head += f" {'output tokens log/server':>25}  {'in':>6} {'exact':>7} {'out':>7}"
    print(f"{head}  {'bursts':>14}  {'equal':<17}  finished, outcomes, flags")
    wrong = 0
    urls = {"": base, **start(base, PROXIES)}
    for case in chosen:
        with tempfile.TemporaryDirectory() as place:
            before = scrape(base)
            code, where, said = run(urls[case.through], case, Path(place))
            time.sleep(0.3)
            server = scrape(base).since(before)
            kept = open_run(where) if where else None
            records = list(kept.records()) if kept else []
            found, told = bursts_of(kept) if kept else (None, False)
        answered = [r for r in records if r.status == 200]
        finished = [r for r in answered if r.outcome not in ("cut", "cancelled")]
        requests = case.choices * len(finished), server.finished.total()
        prompt = case.choices * sum(r.input_tokens.server or 0 for r in answered), server.prompt
        output = sum(r.output_tokens.count or 0 for r in answered), server.generation
        equal = requests[0] == requests[1] and prompt[0] == prompt[1] and output[0] == output[1]
        sample = [r for r in records if r.phase == "measured" and r.outcome == "ok"]
        outcomes = Counter(r.outcome for r in records)
        flags = Counter(flag for r in records for flag in r.flags if flag != "bounded")
        holds = bool(case.through) and PROXIES[case.through].hold_ms > 0
        differs = case.differs or ("cut" if outcomes["cut"] else "")
        fault = (not equal and not differs) or (case.code is not None and code != case.code)
        fault = fault or (told and holds != bool(found))
        wrong += fault
        cells = [f"{a:,} / {b:,}" for a, b in (requests, prompt, output)]
        more = " ".join(f"{k}={n}" for group in (server.finished, outcomes, flags) for k, n in group.items())
        lengths = f"{deviation(sample):>6} {exact_input(sample):>7} {exact(sample):>7}"
        print(
            f"{case.name:<18} {code:>4} {cells[0]:>20} {cells[1]:>25} {cells[2]:>25}  {lengths}"
            f"  {(f'{found.events:.0f} x {found.every_ms:.0f} ms' if found else '-') + ' ?' * (not told):>14}"
            f"  {'yes' if equal else differs or 'NO':<17}  {more}",
            flush=True,
        )
        if code == 3 or fault:
            print("    " + said.replace("\n", "\n    "))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
