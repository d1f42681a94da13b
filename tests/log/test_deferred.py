from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.log.columns import ColumnBuilder
from loadgen.log.deferred import Deferred
from loadgen.log.table import EVENTS
from loadgen.records import Record
from tests.log.record_strategies import any_record
from tests.log.test_columns import same
from tests.thorough import examples


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.lists(any_record, max_size=5), min_size=1, max_size=5), st.data())
def test_events_that_stay_packed_are_the_same(blocks: list[list[Record]], data: st.DataObject) -> None:
    builder = ColumnBuilder.joined(builder_of(block) for block in blocks)
    whole, deferred = builder.columns(), builder.table(most_events=-1)
    assert type(deferred) is Deferred
    assert same(whole, deferred)
    rows = np.array(data.draw(st.lists(st.integers(0, len(whole) - 1)) if len(whole) else st.just([])), dtype=np.int64)
    some, others = whole.at(rows), deferred.at(rows)
    assert same(some, others)
    order = np.array(data.draw(st.permutations(range(len(rows)))), dtype=np.int64)
    assert all(np.array_equal(some.events_at(order)[name], others.events_at(order)[name]) for name in EVENTS)
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows))), dtype=np.bool_)
    assert same(some.where(mask), others.where(mask))
    parts = zip(some.parts(order, events=3), others.parts(order, events=3), strict=True)
    assert all(same(one, other) for one, other in parts)


def builder_of(records: list[Record]) -> ColumnBuilder:
    builder = ColumnBuilder()
    for record in records:
        builder.add(record)
    return builder


def test_few_events_are_unpacked() -> None:
    assert type(ColumnBuilder().table()) is not Deferred
