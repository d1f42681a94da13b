"""Every metric's definition in one sentence, by id. The table and its version go into each run's manifest."""

from __future__ import annotations

from ..records import DEFINITIONS_VERSION

VERSION = DEFINITIONS_VERSION

DEFINITIONS: dict[str, str] = {
    # per request
    "scheduled_at": "when the arrival process, or the freed slot, said to send",
    "sent_at": "just before the first byte of the request goes to the kernel, on an open connection; by the kernel's "
    "transmit stamp where it tells",
    "connect": "name look-up, TCP and TLS of a new connection, each apart; null on a reused one; never inside ttft",
    "first_byte_at": "first byte of the response",
    "first_token_at": "first event that carries output: text, reasoning, a tool call's name or arguments, a refusal",
    "first_content_at": "first output event that is not reasoning",
    "last_token_at": "last output event",
    "done_at": "the stream's end mark, else the end of the body",
    "ttft": "first_token_at - sent_at; null where the answer was not streamed",
    "ttfc": "first_content_at - sent_at; null where the answer was not streamed",
    "e2e": "last_token_at - sent_at",
    "output_tokens": "the server's count, else the token ids in the events, else a local tokenizer's, else the events",
    "token_source": "which of usage, token_ids, tokenizer and events gave output_tokens",
    "first_event_tokens": "tokens in the first output event, from its usage or token ids; else 1, marked assumed",
    "tpot": "(last_token_at - first_token_at) / (output_tokens - first_event_tokens); null when that is below 1",
    "inter_chunk": "gaps between successive output events, pooled over the requests",
    "itl": "each gap divided by the tokens of its later event, once per token; estimated unless these were counted",
    "dispatch_lag": "sent_at - scheduled_at",
    "ttft_scheduled": "first_token_at - scheduled_at",
    "e2e_scheduled": "last_token_at - scheduled_at",
    "outcome": "ok, empty, incomplete, error, timeout, cut (by the run's end), cancelled (by the user), client_error",
    "flags": "what is unusual about a request that nevertheless counts",
    # per step
    "steady_window": "as the driver says, else from the first measured request's scheduled_at to the first filler's",
    "sample": "requests sent in the steady window, each followed to its own end while fillers hold the load",
    "output_throughput": "output tokens of ok and cut requests that arrived in the window / window",
    "output_throughput_classic": "sum of output_tokens / (last last_token_at - first sent_at), measured ok requests",
    "total_throughput": "output_throughput + input tokens of the requests completed ok in the window / window",
    "request_throughput": "measured requests completed ok in the window / window",
    "completion_rate": "requests of the step completed ok in the window, whatever phase they were sent in / window",
    "attempt_rate": "requests of the step sent in the window / window",
    "held_back": "open loop: requests sent late because the limit of requests in flight was reached",
    "not_dispatched": "open loop: arrivals due before the window's end that were unsent then, and never sent",
    "input_deviation": "mean of the server's counts of prompt tokens / mean of the lengths asked for - 1, measured ok",
    "tokens_per_user": "1000 / median tpot in ms",
    "objective": "with a percentile it bounds that of the sample, failures as infinitely late; else each request",
    "goodput": "measured requests that met every per-request objective / window",
    "attainment": "the share of measured requests, without cut and cancelled, that met every per-request objective",
    "concurrency": "time-weighted mean, and peak, of requests in flight, as observed",
    "percentiles": "linear interpolation between order statistics; 95 % interval on the effective sample",
    "means_rates": "with a 95 % interval from batch means over the steady window",
    "littles_law": "the driver's integral of requests in flight / the records' residence, both in the window, - 1",
    "littles_law_server": "the server's own mean of running + waiting in the window / the driver's mean in flight, - 1",
    "verdict": "pass, fail, marginal (within 5 % of the limit), inconclusive, invalid (the client was the limit)",
    "error_bounds": "the most that late stamps of the client can have moved a percentile of ttft, itl, tpot or e2e",
    "client_limit": "the client may have shaped a step: no CPU, a full one, late refills, uncertain stamps or clock",
    "stop_reason": "why a sweep ended",
}
