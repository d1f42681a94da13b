# ruff: noqa: E501 - rows as they stand in their files
"""A small file of every format, written by hand as the formats are documented, and what it holds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Sample:
    """`rows` are (seconds, input tokens, output tokens) in the file's order; `more` are fields of its first row."""

    name: str
    format: str
    text: str
    rows: list[tuple[float | None, int | None, int | None]]
    more: dict[str, object] = field(default_factory=dict)
    dropped: dict[str, int] = field(default_factory=dict)
    unit: str = ""
    file: str = ""

    def __str__(self) -> str:
        return self.name


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


SAMPLES = [
    Sample(
        "azure-2023",
        "Azure LLM",
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:03.9799600,4808,10\n"
        "2023-11-16 18:17:04.0319600,3180,8\n",
        [(1700158623.97996, 4808, 10), (1700158624.03196, 3180, 8)],
        unit="wall clock",
    ),
    Sample(
        "azure-2024",
        "Azure LLM",
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2024-05-10 00:00:00.009930+00:00,2162,5\r\n2024-05-10 00:00:01+00:00,7,0\r\n2024-05-10 00:00:02+00:00,9,3\r\n",
        [(1715299200.00993, 2162, 5), (1715299202.0, 9, 3)],
        dropped={"no output": 1},
        unit="wall clock",
    ),
    Sample(
        "azure-2025-multimodal",
        "Azure LLM",
        "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n2025-01-01 00:00:00.5+00:00,2,1000,50\n",
        [(1735689600.5, 1000, 50)],
        unit="wall clock",
    ),
    Sample(
        "burstgpt-1",
        "BurstGPT",
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,0,1087,API log\n118,GPT-4,417,276,693,Conversation log\n",
        [(5.0, 472, 18), (118.0, 417, 276)],
        {"model": "ChatGPT"},
        {"no output": 1},
        "seconds",
    ),
    Sample(
        "burstgpt-3",
        "BurstGPT",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "19440110.0,77,3.5,GPT-4,472,18,490,Conversation log\n19440111.0,,1.2,ChatGPT,10,20,30,API log\n",
        [(19440110.0, 472, 18), (19440111.0, 10, 20)],
        {"model": "GPT-4", "session": "77"},
        unit="seconds",
    ),
    Sample(
        "vidur",
        "Vidur",
        "arrived_at,num_prefill_tokens,num_decode_tokens\n0.0,100,5\n1.5,200,6\n",
        [(0.0, 100, 5), (1.5, 200, 6)],
        unit="seconds",
    ),
    Sample(
        "sarathi-lengths",
        "lengths (Sarathi, Vidur)",
        "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n100,5,105,20.0\n",
        [(None, 100, 5)],
    ),
    Sample(
        "export",
        "loadgen export",
        "request_id,start_ts,first_token_ts,end_ts,input_tokens,output_tokens,phase,outcome,scheduled_ts,model\n"
        "s1-000000,1.5,2,3,100,20,measured,ok,1.25,m\ns1-000001,2.5,,,100,,measured,error,2.5,m\n"
        "s1-000002,2.6,3,4,100,20,filler,ok,2.6,m\ns1-000003,2.75,3,4,90,10,measured,ok,2.75,m\n",
        [(1.25, 100, 20), (2.75, 90, 10)],
        {"model": "m"},
        {"not ok": 1, "not of the measured phase": 1},
        "seconds",
    ),
    Sample(
        "six-columns",
        "loadgen export",
        "end_ts;output_tokens;request_id;start_ts;first_token_ts;input_tokens\n3;20;a;1.5;2;100\n",
        [(1.5, 100, 20)],
        unit="seconds",
    ),
    Sample(
        "guidellm-csv",
        "GuideLLM",
        "timestamp,input_length,output_length\n0.25,10,20\n",
        [(0.25, 10, 20)],
        unit="seconds",
    ),
    Sample(
        "guidellm-counts",
        "GuideLLM",
        'prompt,prompt_tokens_count,output_tokens_count\n"two\nlines, and a comma",4,5\nb,6,7\n',
        [(None, 4, 5), (None, 6, 7)],
    ),
    Sample(
        "guidellm-jsonl",
        "GuideLLM",
        lines({"timestamp": 0.25, "input_length": 10, "output_length": 20, "duration": 1.5}),
        [(0.25, 10, 20)],
        unit="seconds",
    ),
    Sample(
        "mooncake",
        "Mooncake",
        lines(
            {"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": list(range(14))},
            {"timestamp": 3000, "input_length": 512, "output_length": 2, "hash_ids": [0]},
        ),
        [(0.0, 6758, 500), (3.0, 512, 2)],
        {"hash_ids": list(range(14)), "block_tokens": 512},
        unit="milliseconds",
    ),
    Sample(
        "mooncake-aiperf",
        "Mooncake",
        lines(
            {"timestamp": 1000, "session_id": "a", "input_length": 300, "output_length": 40},
            {"delay": 500, "session_id": "a", "input_length": 10, "output_length": 4},
        ),
        [(1.0, 300, 40), (None, 10, 4)],
        {"session": "a"},
        unit="milliseconds",
    ),
    Sample(
        "bailian",
        "Qwen-Bailian",
        lines(
            {"chat_id": 5, "parent_chat_id": -1, "timestamp": 61.5, "input_length": 33, "output_length": 9,
             "type": "text", "turn": 1, "hash_ids": [1, 2, 3]},
            {"chat_id": 8, "parent_chat_id": 5, "timestamp": 90.0, "input_length": 64, "output_length": 9,
             "type": "text", "turn": 2, "hash_ids": [1, 2, 3, 4]},
        ),
        [(61.5, 33, 9), (90.0, 64, 9)],
        {"session": "5", "turn": 1, "block_tokens": 16},
        unit="seconds",
    ),
    Sample(
        "ragpulse",
        "RAGPulse",
        lines(
            {"timestamp": "27", "input_length": 2944, "output_length": 283, "session_id": "q1",
             "hash_ids": {"sys_prompt": [0], "passages_ids": [7, 9], "history": [], "web_search": [], "user_input": [3]}}
        ) + "\n",
        [(27.0, 2944, 283)],
        {"session": "q1", "hash_ids": ["sys_prompt 0", "passages_ids 7", "passages_ids 9", "user_input 3"]},
        unit="seconds",
    ),
    Sample(
        "servegen-offline-hashes",
        "ServeGen offline",
        lines({"request_id": 0, "type": "multimodal", "input_length": 40, "hash_ids": [6, 7, 8], "img_ids": ["i"]}),
        [(None, 40, None)],
        {"hash_ids": [6, 7, 8], "block_tokens": 16},
    ),
    Sample(
        "servegen-offline-lengths",
        "ServeGen offline",
        lines({"request_id": 0, "type": "text", "input_length": 61, "output_length": 2370, "duration": 14000}),
        [(None, 61, 2370)],
    ),
    Sample(
        "llmservingsim",
        "LLMServingSim",
        lines({"input_toks": 12, "output_toks": 34, "arrival_time_ns": 1_500_000_000}),
        [(1.5, 12, 34)],
        unit="nanoseconds",
    ),
    Sample(
        "sharegpt",
        "ShareGPT",
        json.dumps(
            [
                {"id": "c0", "conversations": [
                    {"from": "human", "value": "How are you?"}, {"from": "gpt", "value": "Fine, and you?"},
                    {"from": "human", "value": "Well."}, {"from": "gpt", "value": "Good."}]},
                {"id": "c1", "conversations": [{"from": "gpt", "value": "no question"}]},
            ]
        ),
        [(None, 3, 4), (None, 2, 2)],
        {"session": "c0", "turn": 1, "text": "How are you?"},
        {"a conversation without a question and its answer": 1},
    ),
    Sample(
        "vllm-custom",
        "vLLM custom",
        lines({"prompt": "Say it."}, {"prompt": "Say it again.", "output_tokens": 9}),
        [(None, 2, None), (None, 4, 9)],
        {"text": "Say it."},
    ),
    Sample(
        "aiperf-single",
        "AIPerf",
        lines({"text": "Hello there", "timestamp": 1500, "output_length": 7}, {"image": "x.png", "timestamp": 1600}),
        [(1.5, 3, 7)],
        {"text": "Hello there"},
        {"without a text (only images, audio or video)": 1},
        "milliseconds",
    ),
    Sample(
        "aiperf-multi",
        "AIPerf",
        lines(
            {"session_id": "s", "turns": [{"texts": ["Hello", "there"], "timestamp": 0}, {"text": "More", "delay": 250}]}
        ),
        [(0.0, 3, None), (None, 1, None)],
        {"session": "s", "turn": 1, "text": "Hello\nthere"},
        unit="milliseconds",
    ),
    Sample(
        "weka",
        "WEKA agent session",
        json.dumps(
            {"id": "w", "models": ["claude"], "block_size": 64, "hash_id_scope": "local", "requests": [
                {"t": 0.5, "type": "s", "in": 120, "out": 8, "hash_ids": [1, 2], "model": "claude"},
                {"t": 2.0, "type": "subagent", "agent_id": "b", "requests": [
                    {"t": 0.25, "type": "n", "in": 64, "out": 2, "hash_ids": [9]}]},
                {"t": 9.0, "type": "n", "in": 200, "out": 3, "hash_ids": [1, 2, 3, 4]}]},
            indent=1,
        ),
        [(0.5, 120, 8), (2.25, 64, 2), (9.0, 200, 3)],
        {"session": "w", "turn": 1, "block_tokens": 64, "model": "claude"},
        unit="seconds",
    ),
    Sample(
        "own-log",
        "loadgen",
        lines(
            {"id": "p-1", "phase": "preflight", "scheduled_ns": 5, "input_tokens": {"asked": 1},
             "output_tokens": {"asked": 1}, "outcome": "ok"},
            {"id": "s2-000007", "phase": "filler", "scheduled_ns": 2_500_000_000, "outcome": "error", "model": "m",
             "input_tokens": {"asked": 512, "server": 514}, "output_tokens": {"asked": None, "count": 31}},
        ),
        [(2.5, 512, 31)],
        {"place": (2, 7), "model": "m"},
        {"of the preflight": 1},
        "nanoseconds",
    ),
]  # fmt: skip
