from __future__ import annotations

from pathlib import Path

import pytest

from loadgen.errors import UsageError
from loadgen.workload.paths import asked


@pytest.mark.parametrize("name", ["a" * 300, "a\0b"], ids=["too long", "a NUL"])
def test_a_path_that_cannot_be_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(UsageError, match=r"^the plan '.*' cannot be read: [^']+$") as caught:
        asked(Path(name), "plan", "give another")
    assert caught.value.remedy == "give another"


def test_whether_it_is_there_is_for_others_to_ask(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file", tmp_path / "none", tmp_path / "file" / "none"):
        assert asked(path, "plan", "") == path
