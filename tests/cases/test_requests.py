"""Whole request bodies: what of a line of a file arrives at the server, to the byte."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import anyio
import pytest

from loadgen.client.dialects.base import RequestOptions
from loadgen.records import Prompt, Record
from loadgen.simulator.scripted import DONE, EOF, FIN, C, J, ScriptedServer, U
from loadgen.workload.files import read_prompts
from tests.cases.support import MakeSender, send, spec

IMAGE = "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 1000).decode()
STREAM = '"stream":true,"stream_options":{"include_usage":true}'
USER = '"messages":[{"role":"user","content":"hé \u2028 \U0001f600"}]'

# What stands in the file → what arrives: the same, and what is needed to measure it.
BODIES: dict[str, tuple[str, str]] = {
    "tools and a schema": (
        '{"model":"m",@USER,"tools":[{"type":"function","function":{"name":"f","parameters":{"b":1,"a":{"least":1.50}}}}],'
        '"tool_choice":"auto","response_format":{"type":"json_schema","json_schema":{"strict":true,"schema":{}}}}',
        "",
    ),
    "images": (
        '{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"@IMAGE"}},'
        '{"type":"image_url","image_url":{"url":"https://x/y.png"}}]}]}',
        "",
    ),
    "numbers to the digit": (
        '{"model":"m",@USER,"seed":18446744073709551616,"temperature":0.70,'
        '"x":[1e2,-0,-0.0,1.0,0.1234567890123456789]}',
        "",
    ),
    "choices and logprobs": ('{"n":2,"model":"m","logprobs":true,"top_logprobs":5,@USER,"user":null}', ""),
    "not streamed there": (
        '{"model":"m","stream":false,@USER}',
        '{"model":"m","stream":true,@USER,"stream_options":{"include_usage":true}}',
    ),
    "usage asked for already": ('{"model":"m",@USER,@STREAM}', '{"model":"m",@USER,@STREAM}'),
    "no model": ("{@USER}", '{"model":"the run\'s",@USER,@STREAM}'),
    "its own length": ('{"model":"m",@USER,"max_completion_tokens":3}', ""),
}


def filled(text: str) -> str:
    return text.replace("@USER", USER).replace("@STREAM", STREAM).replace("@IMAGE", IMAGE)


def received(make_sender: MakeSender, prompt: Prompt, **options: Any) -> tuple[Record, bytes]:
    async def main() -> tuple[Record, bytes]:
        async with (
            ScriptedServer([C("a"), FIN("stop"), U(3, 1), DONE]) as server,
            make_sender(server.url, **options) as sender,
        ):
            record = await sender.send(spec(0, prompt), time.monotonic_ns())
        assert server.errors == []
        return record, server.requests[0].body

    return anyio.run(main)


@pytest.mark.parametrize("case", BODIES)
def test_a_body_arrives_as_it_is_written(make_sender: MakeSender, tmp_path: Path, case: str) -> None:
    written, expected = map(filled, BODIES[case])
    (tmp_path / "f.jsonl").write_text(written + "\n", encoding="utf-8")
    [prompt] = read_prompts(tmp_path / "f.jsonl", None).head
    record, body = received(make_sender, prompt, options=RequestOptions("the run's", force_length=True))
    assert record.outcome == "ok"
    assert record.model == ("the run's" if case == "no model" else "m")
    assert body.decode() == (expected or f"{written[:-1]},{STREAM}}}")


def test_a_model_that_is_asked_for_takes_the_place_of_the_bodys(make_sender: MakeSender) -> None:
    prompt = Prompt(body={"a": 1, "model": "m", "messages": [1]}, model="lora", source_id="id-7")
    record, body = received(make_sender, prompt)
    assert body.decode() == filled('{"a":1,"model":"lora","messages":[1],@STREAM}')
    assert (record.model, record.source_id) == ("lora", "id-7")


def test_a_body_to_tgi_gets_what_is_asked_for_among_its_parameters(make_sender: MakeSender) -> None:
    token = {"token": {"id": 1, "text": "a"}, "generated_text": "a", "details": {"finish_reason": "length"}}
    prompt = Prompt(body={"inputs": "p", "parameters": {"watermark": True}})
    options = RequestOptions("m", sampling={"top_k": 5})
    [record] = send(make_sender, [J(token), EOF], prompt=prompt, endpoint="generate_stream", options=options)
    assert (record.outcome, record.model) == ("ok", None)
