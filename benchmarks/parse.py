"""What an event costs after its read: CPU per event of the tally, by kind of chunk and by way of feeding it.

    python benchmarks/parse.py [--events 200] [--repeats 15] [--json]

Streams of `--events` deltas, each delta one read, as a paced server sends them; chunks as a real vLLM writes them (with
and without a running usage, token ids, log-probabilities), as `tokend` does, and with an escape or a letter outside
ASCII in every text. `hold` is what a read callback pays and parses now and then; `feed` parses each read at once;
`flood` feeds 16 events a read. Figures are medians over the repeats of process CPU time divided by the deltas, in µs;
the stream's own ends (role, finish, usage, [DONE], making the tally) are in them, `result` is what the record's figures
cost at the end, per delta as well. Repeats of all rows are interleaved.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from statistics import median

from loadgen.client.dialects import DIALECTS
from loadgen.client.tally import Tally

HEAD = b'data: {"id":"chatcmpl-90d475fbd37722a8","object":"chat.completion.chunk","created":1795959702,"model":"tiny",'
ROLE = (
    HEAD
    + b'"choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
)
FINISH = HEAD + b'"choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"length"}]}\n\n'
WORDS = (b" filename", b" fee", b"sys", b"iew", b"}:", b" separ", b"ated", b" the")
USAGE = b',"usage":{"prompt_tokens":23,"total_tokens":%d,"completion_tokens":%d,"completion_tokens_details":null}'
LOGPROBS = (
    b'{"content":[{"token":"%s","logprob":-%d.25,"bytes":[32,99],"top_logprobs":[{"token":"a","logprob":-1.5}]}]}'
)


def delta(text: bytes, usage: bytes = b"", logprobs: bytes = b"null", ids: bytes = b"null") -> bytes:
    choice = b'{"index":0,"delta":{"content":"%s"},"logprobs":%s,"finish_reason":null,"token_ids":%s}'
    return HEAD + b'"choices":[' + choice % (text, logprobs, ids) + b"]" + usage + b"}\n\n"


def tokend(_: bytes, i: int) -> bytes:
    content = b"R%019d M%019d I%06d" % (1764423206123456789 + 20_000_000 * i, 81_000_000_000 + 20_000_000 * i, i)
    head = (
        b'data: {"id":"chatcmpl-000000a7","object":"chat.completion.chunk","created":1764423206,"model":"mock-model",'
    )
    return (
        head + b'"choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":null}]}\n\n' % content
    )


KINDS: dict[str, Callable[[bytes, int], bytes]] = {
    "vllm": lambda word, i: delta(word),
    "vllm, running usage": lambda word, i: delta(word, USAGE % (23 + i, i)),
    "tokend": tokend,
    "escaped": lambda word, i: delta(word + b"\\n"),
    "not ASCII": lambda word, i: delta(word + "é汉".encode()),
    "vllm, token ids": lambda word, i: delta(word, ids=b"[%d]" % (1000 + i)),
    "vllm, logprobs": lambda word, i: delta(word, logprobs=LOGPROBS % (word, i)),
}


def stream(kind: str, events: int) -> list[bytes]:
    make = KINDS[kind]
    deltas = [make(WORDS[i % len(WORDS)], i) for i in range(1, events + 1)]
    usage = HEAD + b'"choices":[]' + USAGE % (23 + events, events) + b"}\n\n"
    return [ROLE, *deltas, FINISH, usage, b"data: [DONE]\n\n"]


def stamped(reads: list[bytes]) -> Iterator[tuple[bytes, int, int]]:
    return ((data, 50_000_000 + 20_000_000 * i, 30_000_000 + 20_000_000 * i) for i, data in enumerate(reads))


def hold(tally: Tally, reads: list[tuple[bytes, int, int]]) -> None:
    for i, (data, stamp, before) in enumerate(reads):
        if tally.hold(data, stamp, before) or not i % 8:
            while tally.parse_pending():
                pass


def feed(tally: Tally, reads: list[tuple[bytes, int, int]]) -> None:
    for data, stamp, before in reads:
        tally.feed(data, stamp, before)


def once(
    how: Callable[[Tally, list[tuple[bytes, int, int]]], None], reads: list[tuple[bytes, int, int]], n: int
) -> tuple[float, float]:
    """CPU in µs per delta: of the reads, and of the result."""
    rounds = max(1, 4000 // n)
    start = time.process_time_ns()
    tallies = []
    for _ in range(rounds):
        tally = Tally(DIALECTS["chat"], 0)
        how(tally, reads)
        tallies.append(tally)
    middle = time.process_time_ns()
    results = [tally.result(n) for tally in tallies]
    end = time.process_time_ns()
    assert all(result.outcome == "ok" and result.output_count == n for result in results)
    return (middle - start) / 1e3 / n / rounds, (end - middle) / 1e3 / n / rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    n = options.events
    plans = {}
    for kind in KINDS:
        reads = stream(kind, n)
        plans[kind, "hold"] = hold, list(stamped(reads))
        plans[kind, "feed"] = feed, list(stamped(reads))
        plans[kind, "flood"] = feed, list(stamped([b"".join(reads[i : i + 16]) for i in range(0, len(reads), 16)]))
    times: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in plans}
    for _ in range(options.repeats):
        for key, (how, reads_of) in plans.items():
            times[key].append(once(how, reads_of, n))
    rows = {
        kind: {
            **{how: median(t for t, _ in times[kind, how]) for how in ("hold", "feed", "flood")},
            "result": median(t for _, t in times[kind, "feed"]),
        }
        for kind in KINDS
    }
    if options.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"µs of CPU per delta, {n} deltas a stream, median of {options.repeats}")
    print(f"{'chunk':24}{'hold':>8}{'feed':>8}{'flood':>8}{'result':>8}")
    for kind, row in rows.items():
        print(f"{kind:24}" + "".join(f"{value:8.2f}" for value in row.values()))


if __name__ == "__main__":
    main()
