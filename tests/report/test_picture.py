"""A chart as a file: by either suffix in any case, and one sentence where it cannot be."""

from __future__ import annotations

from pathlib import Path

import altair as alt
import pytest

from loadgen.errors import LogError, UsageError
from loadgen.report.picture import check_picture, save


def chart() -> alt.Chart:
    return alt.Chart(alt.Data(values=[{"x": 1, "y": 2}])).mark_point().encode(x="x:Q", y="y:Q")


@pytest.mark.parametrize(
    ("name", "start"), [("a.svg", b"<svg"), ("a.SVG", b"<svg"), ("a.png", b"\x89PNG"), ("a.Png", b"\x89PNG")]
)
def test_a_picture_is_what_its_name_says(tmp_path: Path, name: str, start: bytes) -> None:
    check_picture(tmp_path / name)
    save(chart(), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize("name", ["a.pdf", "svg", ".svg", "a.svg.gz"])
def test_another_suffix_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"neither \.svg nor \.png"):
        check_picture(Path(name))


def test_a_place_that_cannot_be_written_is_said_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="cannot be written: No such file or directory"):
        save(chart(), tmp_path / "missing" / "a.svg")
