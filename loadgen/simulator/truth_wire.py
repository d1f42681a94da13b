"""The bytes of the ground-truth server: chat chunks over chunked encoding, rendered ahead but for the stamps. Pure."""

from __future__ import annotations

_PAYLOAD = (
    b'data: {"id":"chatcmpl-@ID@","object":"chat.completion.chunk","created":1764423206,"model":"truth","choices":'
    b'[{"index":0,"delta":{@DELTA@},"logprobs":null,"finish_reason":@REASON@}]@MORE@}\n\n'
)
_HEAD = (
    b"HTTP/1.1 200 OK\r\nserver: loadgen-truth\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_CONTENT = b'"content":"R%019d M%019d I%06d"'


def chunk(payload: bytes) -> bytes:
    """One chunk of HTTP's chunked encoding."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def _event(rid: bytes, delta: bytes, reason: bytes = b"null", more: bytes = b"") -> bytes:
    out = _PAYLOAD.replace(b"@ID@", rid).replace(b"@DELTA@", delta)
    return out.replace(b"@REASON@", reason).replace(b"@MORE@", more)


def token_template(rid: bytes) -> bytes:
    """The chunk of one token; `% (realtime ns, monotonic ns, index)` fills it in, always to the same length."""
    rendered = _event(rid, _CONTENT % (0, 0, 0))
    return b"%x\r\n%b\r\n" % (len(rendered), _event(rid, _CONTENT))


def opening(rid: bytes, arrival_real_ns: int, arrival_ns: int, kernel: bool) -> bytes:
    """Head and role event, which says when the request arrived."""
    told = b',"truth":{"arrival_real_ns":%d,"arrival_ns":%d,"stamp":"%b"}' % (
        arrival_real_ns,
        arrival_ns,
        b"kernel" if kernel else b"user",
    )
    return _HEAD + chunk(_event(rid, b'"role":"assistant","content":""', more=told))


def closing(rid: bytes, tokens: int) -> bytes:
    """Finish reason, usage, `[DONE]` and the last chunk."""
    usage = (
        b'data: {"id":"chatcmpl-%b","object":"chat.completion.chunk","created":1764423206,"model":"truth","choices":[],'
        b'"usage":{"prompt_tokens":11,"total_tokens":%d,"completion_tokens":%d}}\n\n' % (rid, 11 + tokens, tokens)
    )
    return chunk(_event(rid, b"", b'"length"')) + chunk(usage) + chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"
