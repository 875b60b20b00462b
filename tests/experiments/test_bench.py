"""The benchmark of time to quality: curves are read as they say, and a course keeps what the flow was at each look."""

import numpy as np
import pandas as pd
import pytest
import torch

from experiments.sweep import MOST, made_up, rate
from experiments.tables.bench import Counted, rates
from experiments.tables.nats import beside_the_flow, flow_course, reached, split

pytestmark = pytest.mark.long  # of the experiments, not of the library
FLOW = [(1.0, -9.0), (4.0, -5.0), (8.0, -5.002), (16.0, -6.0)]  # best at 4 seconds
RATIO = "seconds to the flow's best nats, ours / flow's own"


def test_a_level_is_reached_at_the_first_second_within_a_hundredth_of_it():
    assert reached(FLOW, -5.0) == 4.0
    assert reached(FLOW, -5.995) == 4.0
    assert reached(FLOW, -9.0) == 1.0
    assert reached(FLOW, -4.9) == np.inf


def test_the_ratio_is_our_seconds_over_the_flows_and_is_left_out_where_ours_falls_short(capsys):
    ahead = beside_the_flow([(1.0, -6.0), (2.0, -4.5), (3.0, -4.0)], FLOW)
    assert ahead[RATIO] == pytest.approx(0.5)
    behind = beside_the_flow([(2.0, -5.5)], FLOW)
    assert RATIO not in behind
    assert behind["best nats at any time, ours less the flow's"] == pytest.approx(-0.5)
    assert "does not reach" in capsys.readouterr().out


def test_a_course_has_the_flow_at_every_look_and_the_flow_is_the_best_of_them():
    pytest.importorskip("zuko")
    train, _ = split(made_up(300, 3, 0), 0)
    flow, kept = flow_course(train, 0, "cpu", steps=30, every=10, batch_size=64)
    seconds = [moment for moment, _ in kept]
    assert len(kept) == 3
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    best = kept[flow.history.best_step // 10 - 1][1]
    assert all(torch.equal(value, best[name]) for name, value in flow.flow.state_dict().items())
    assert any(not torch.equal(kept[0][1][name], value) for name, value in kept[2][1].items())


def test_the_columns_of_a_made_up_table_hang_together():
    table = made_up(2000, 6, 0)
    assert table.shape == (2000, 6)
    numbers = table.select_dtypes("number").corr().abs().to_numpy()
    assert np.triu(numbers, 1).max() > 5 / np.sqrt(2000)
    assert set(table["c0"]) == set("abcd")


def test_operations_are_counted_forward_and_backward():
    x = torch.ones(3, requires_grad=True)
    with Counted() as forward:
        y = (x * x).sum()
    with Counted() as backward:
        y.backward()
    assert forward.count == 2
    assert backward.count > 2


def asked_of(seconds_a_row, monkeypatch, most=MOST):
    """The rows of each call of a use that takes so long."""
    clock, asked = [0.0], []

    def use(rows):
        asked.append(rows)
        clock[0] += seconds_a_row * rows

    monkeypatch.setattr("time.perf_counter", lambda: clock[0])
    assert rate(use, most=most) == pytest.approx(1 / seconds_a_row)
    return asked


def test_a_rate_is_taken_over_many_rows_unless_they_take_long(monkeypatch):
    assert asked_of(1e-9, monkeypatch)[-1] == MOST
    assert asked_of(1e-4, monkeypatch) == [250, 250, 1000, 4000]
    assert asked_of(1e-1, monkeypatch) == [250, 250]
    assert asked_of(1e-9, monkeypatch, most=1500) == [250, 250, 1000, 1500]
    assert asked_of(1e-9, monkeypatch, most=100) == [100, 100]


def test_no_row_is_scored_twice_where_its_rate_is_taken():
    table, asked = made_up(700, 3, 0), []
    rates(pd.concat([table, table]), asked.append, lambda n: None)
    assert max(map(len, asked)) == len(table.drop_duplicates())
    assert not any(rows.duplicated().any() for rows in asked)
