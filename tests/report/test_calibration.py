"""What a calibration says."""

from __future__ import annotations

from typing import Any

import pytest

from loadgen.report.calibration import render
from loadgen.runner.calibrate.cite import cite


def calibration(**capacity: Any) -> dict[str, Any]:
    spread = {"n": 9, "p50": 2.71, "p99": 12.34, "max": 123456.0}
    stamps = {"all": spread, "exact": spread, "exact_share": 0.987, "covered": 1.0, "bound_p99_us": 900.0}
    stage = {
        "mode": "smooth",
        "tls": False,
        "streams": 1024,
        "asked_per_s": 51_200.0,
        "events_per_s": 51_150.0,
        "stamps": stamps,
        "ttft": spread,
        "cpu_us_per_event": 10.64,
        "cpu_share": 0.55,
        "waited_share": 0.0,
        "failed": 0,
        "server": {},
        "limited_by": None,
    }
    nothing = {"all": None, "exact": None, "exact_share": 0.0, "covered": None, "bound_p99_us": None}
    return {
        "schema_version": 1,
        "created": "2026-11-29T13:45:00+00:00",
        "seconds": 48.2,
        "loadgen": "0.1.0",
        "host": {"cpu": "A CPU", "machine": "x86_64", "cpus_usable": 8, "python": "3.11.7"},
        "transport": "kernel",
        "apart": True,
        "capacity": {
            "events_per_s": 51_150.0,
            "streams": 1024,
            "cpu_us_per_event": 10.64,
            "at_least": False,
            "limited_by": "cpu",
            "broke_at_streams": 2048,
            **capacity,
        },
        "streams": [
            {**stage, "mode": "lockstep", "tls": True, "streams": 64},
            stage,
            {**stage, "streams": 2048, "stamps": nothing, "ttft": None, "limited_by": "coalescing"},
        ],
        "dispatch": [
            {
                "rate": 500.0,
                "requests": 1509,
                "failed": 1,
                "not_dispatched": 2,
                "new_connections": 0,
                "wire_lag": spread,
                "dispatch_lag": spread,
                "ttft": None,
                "cpu_share": 0.31,
                "waited_share": 0.0,
            }
        ],
        "disturbed": False,
    }


@pytest.mark.parametrize(
    ("capacity", "events_per_s", "streams", "expected"),
    [
        ({}, 16_500.0, 64, "this machine carries 3.1x what this run needed (calibrated 2026-11-29)"),
        ({}, 1.0, 1, "this machine carries 51,150x what this run needed (calibrated 2026-11-29)"),
        ({"at_least": True}, 16_500.0, 64, "this machine carries at least 3.1x what this run needed (… 2026-11-29)"),
        ({}, 16_500.0, 1025, "this machine carries 3.1x what this run needed (… 2026-11-29 with 1,024 streams)"),
        ({}, 102_300.0, 9, "this run needed 2.0x what this machine carries (calibrated 2026-11-29)"),
        (
            {"at_least": True},
            102_300.0,
            9,
            "this run needed 2.0x what this machine has been seen to carry (… 2026-11-29)",
        ),
        ({}, 0.0, 9, None),
        ({"events_per_s": 0.0}, 10.0, 9, None),
        ({"events_per_s": None}, 10.0, 9, None),
    ],
)
def test_l06_a_run_cites_what_this_machine_carries(
    capacity: dict[str, Any], events_per_s: float, streams: int, expected: str | None
) -> None:
    said = cite(calibration(**capacity), events_per_s, streams)
    assert said == (expected and expected.replace("…", "calibrated"))


def test_a_file_without_a_capacity_is_not_cited() -> None:
    assert cite({}, 10.0, 1) is None
    assert cite({"capacity": []}, 10.0, 1) is None


def test_the_table_holds_every_stage_on_one_screen() -> None:
    lines = render(calibration()).splitlines()
    assert max(map(len, lines)) <= 120
    assert lines[2] == "carries   51,150 events/s in 1,024 streams, 10.6 µs of CPU an event"
    assert lines[3] == "limit     at 2,048 streams the client's CPU was full"
    rows = [" ".join(line.split()) for line in lines]
    assert [row for row in rows if row.startswith(("smooth", "lockstep"))] == [
        "smooth 1,024 51,150 2.7 12.3 0.12s 99 % 12.3 100 % 2.7 12.3 55 %",
        "smooth 2,048 51,150 – – – 0 % – – – – 55 % coalescing",
        "lockstep over TLS 64 51,150 2.7 12.3 0.12s 99 % 12.3 100 % 2.7 12.3 55 %",
    ]
    assert "500 requests/s 1,509 2.7 12.3 0.12s 2.7 12.3 3 – – 31 %" in rows
    assert "warning" not in "".join(lines)


@pytest.mark.parametrize(
    ("capacity", "carries", "limit"),
    [
        (
            {"at_least": True, "limited_by": "server"},
            "at least 51,150 events/s in 1,024 streams, 10.6 µs of CPU an event",
            "at 2,048 streams the ground-truth server was the limit",
        ),
        (
            {"at_least": True, "limited_by": None, "broke_at_streams": None, "cpu_us_per_event": None},
            "at least 51,150 events/s in 1,024 streams",
            "none was met; no more streams were tried",
        ),
        (
            {"streams": 0, "events_per_s": 0.0, "limited_by": "errors", "broke_at_streams": 16},
            "nothing that was tried",
            "at 16 streams requests failed",
        ),
    ],
)
def test_the_capacity_in_words(capacity: dict[str, Any], carries: str, limit: str) -> None:
    lines = render(calibration(**capacity)).splitlines()
    assert lines[2].removeprefix("carries   ") == carries
    assert lines[3].removeprefix("limit     ") == limit


def test_a_disturbed_machine_is_told() -> None:
    assert "warning   other work" in render({**calibration(), "disturbed": True, "dispatch": []})
