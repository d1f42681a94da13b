"""The table, as text for a terminal and as a section of a Markdown file. Pure, but for `write_section`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .truth import Load

Rows = Mapping[str, Mapping[str, Mapping[str, float]]]  # load → client → column → value

BEGIN, END = "<!-- peers: begin -->", "<!-- peers: end -->"


@dataclass(frozen=True, slots=True)
class Column:
    key: str
    head: str


COLUMNS = (
    Column("ttft_mean_error", "TTFT mean, ms"),
    Column("ttft_p50_error", "TTFT p50, ms"),
    Column("ttft_p99_error", "TTFT p99, ms"),
    Column("itl_mean_error", "ITL mean, ms"),
    Column("tpot_mean_error", "TPOT mean, ms"),
    Column("e2e_mean_error", "E2E mean, ms"),
    Column("gap_p50", "one gap p50, ms"),
    Column("gap_p99", "one gap p99, ms"),
    Column("events_s", "events/s"),
    Column("cpu_us", "CPU, µs/event"),
    Column("cpu_s", "CPU in all, s"),
    Column("wall", "wall, s"),
    Column("rss", "RSS, MiB"),
    Column("startup", "start-up, s"),
    Column("others", "others on its core, %"),
)
EXPLANATION = """\
An error is what the client reported minus the same statistic of the same requests by the stamps of the server's kernel
(a request's arrival there, each token's departure): what the client added. *One gap* is how far single inter-token gaps
were off, for clients whose output holds them. An event is a token; events/s are all that the server sent while every
stream was busy: from when as many of the requests that count have come as there are streams until the last of them
comes. CPU is that of all of a client's processes from its first request to its last token. Start-up is the time to the
first request, loading and preflight included. *Others on its core* is what else ran there: trust rows with much of it
less. A starved client reads several events at once, which lowers its CPU an event. RSS is the largest sum over its
processes. Medians of {rounds}, with one core for the server and one for the client.

`vllm bench serve` counts the time from the role chunk to the first token, and from the last token to the finish reason,
as two more gaps, so its mean ITL is too small by 2 in {gaps}. Of AIPerf and GuideLLM, whose ITL is a request's mean
gap, it stands for both. inference-perf tokenizes the text again, which here is stamps: its TPOT stands for both; and it
is asked for completions, as it has no made-up prompts for chat."""
ERRORS = ("ttft_mean_error", "ttft_p50_error", "ttft_p99_error", "itl_mean_error", "tpot_mean_error", "e2e_mean_error")

REFERENCE = ("aiohttp", "httpx")  # clients as people write them, in benchmarks/clients.py


def number(value: float | None, *, sign: bool = False) -> str:
    """About three significant digits; an error below a microsecond is not told apart from none."""
    if value is None or value != value:
        return "–"
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:{'+' if sign else ''}.{digits}f}"


def cells(row: Mapping[str, float]) -> list[str]:
    return [number(row.get(c.key), sign=c.key in ERRORS) for c in COLUMNS]


def factors(clients: Mapping[str, Mapping[str, float]], ours: str = "loadgen") -> list[str]:
    """How our errors and CPU stand to the best of the released peers, or where there are none to that of the reference
    clients: a sentence each."""
    if ours not in clients or len(clients) < 2:
        return []
    found = []
    for key in (*ERRORS, "gap_p99", "cpu_us", "cpu_s"):
        others = {name: abs(row[key]) for name, row in clients.items() if name != ours and key in row}
        if key not in clients[ours] or not others:
            continue
        others = {name: value for name, value in others.items() if name not in REFERENCE} or others
        best = min(others, key=lambda name: others[name])
        mine = abs(clients[ours][key])
        head = next(c.head for c in COLUMNS if c.key == key).replace(", µs/event", " an event").split(",")[0]
        factor = others[best] / mine if mine else float("inf")
        unit, scale = ("s", 1.0) if key == "cpu_s" else ("µs", 1.0 if key == "cpu_us" else 1e3)
        told = f"{_figures(scale * mine)} {unit} against {_figures(scale * others[best])}"
        found.append(f"{head}: {told} of {best} ({_figures(factor, 10)} ×)")
    return found


def _figures(value: float, whole: float = 100) -> str:
    return f"{value:,.0f}" if value >= whole else f"{value:.3g}"


def doubts(clients: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Which clients said of their own runs that they were the limit: a sentence each."""
    return [
        f"{name} itself called {row['doubted']:.0f} of its {row['runs']:.0f} runs here invalid, this client the limit"
        for name, row in clients.items()
        if row.get("doubted")
    ]


def text_table(rows: Rows, skipped: Mapping[str, str]) -> str:
    lines: list[str] = []
    for load, clients in rows.items():
        grid = [["client", *(c.head for c in COLUMNS)], *([name, *cells(row)] for name, row in clients.items())]
        widths = [max(len(line[i]) for line in grid) for i in range(len(grid[0]))]
        lines.append(f"\n{load}")
        lines += [
            "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
            for line in grid
        ]
        lines += doubts(clients)
    lines += [f"{name}: {why}" for name, why in skipped.items()]
    return "\n".join(lines)


def section(
    rows: Rows, skipped: Mapping[str, str], loads: Sequence[Load], rounds: int, facts: Mapping[str, str]
) -> str:
    """The section of RESULTS.md, between its two markers."""
    lines = [
        BEGIN,
        "## Beside other clients",
        "",
        f"`{facts['command']}` · {facts['date']} · {facts['host']}",
        "",
        f"Versions: {facts['versions']}.",
        "",
        EXPLANATION.format(
            rounds="one round" if rounds == 1 else f"{rounds} interleaved rounds", gaps=loads[0].tokens + 1
        ),
    ]
    for load in loads:
        clients = rows.get(load.name)
        if not clients:
            continue
        lines += ["", f"### {load.name}", ""]
        lines.append(
            f"TTFT {load.ttft_ms:g} ms, ITL {load.itl_ms:g} ms, {load.tokens} tokens, {load.requests} requests."
        )
        lines += ["", "| client | " + " | ".join(c.head for c in COLUMNS) + " |"]
        lines.append("| --- |" + " ---: |" * len(COLUMNS))
        lines += [f"| {name} | " + " | ".join(cells(row)) + " |" for name, row in clients.items()]
        lines += [f"\n{sentence}." for sentence in doubts(clients)]
        told = factors(clients)
        if told:
            lines += ["", "This client and the best of the others: " + "; ".join(told) + "."]
    if skipped:
        lines += ["", "Not measured:", ""]
        lines += [f"- {name}: {_plain(why)}" for name, why in skipped.items()]
    return "\n".join([*lines, END])


def _plain(why: str) -> str:
    return why.replace("|", "/").replace(str(Path.home()), "~")


def write_section(file: Path, text: str) -> None:
    """Put `text` between its markers in `file`, leaving the rest of the file as it is."""
    old = file.read_text() if file.exists() else "# Benchmark results\n"
    before, _, rest = old.partition(BEGIN)
    after = rest.partition(END)[2].strip()
    file.write_text(f"{before.rstrip()}\n\n{text}\n" + (f"\n{after}\n" if after else ""))
