"""Pieces under a clock: results as they come, failures named, what is late left out."""

import json
import math
import operator
import time

import numpy as np
import pytest
import torch
from scipy.special import beta

from ctem import ProductBase
from ctem.spaces import Category, Space
from experiments.energies import bits, images, lattices, ours, referee
from experiments.images.unet import ImageNet
from experiments.pieces import Piece, worked

PIECES = [Piece("part", name, 1.0) for name in ("a", "b", "c")]


def test_pieces_are_done_in_order_and_a_failure_stops_no_other():
    def work(piece, until):
        if piece.name == "b":
            raise ValueError("broken")
        return piece.name.upper()

    found = list(worked(PIECES, work, 0, time.time() + 60))
    assert [each.result for each in found] == ["A", None, "C"]
    assert "broken" in found[1].error


def test_no_piece_begins_after_the_end():
    assert list(worked(PIECES, lambda piece, until: 1, 0, time.time() - 1)) == []


def test_processes_do_all_pieces_and_are_gone_at_the_end():
    found = list(worked(PIECES, operator.contains, 2, time.time() + 300))
    assert {each.piece.name for each in found} == {"a", "b", "c"}
    assert all(each.result is False for each in found)


@pytest.mark.parametrize("quick", [True, False])
def test_every_piece_of_the_referee_has_a_place_and_long_ones_come_first(quick):
    options = referee.Options(quick, "cpu", None, None, 1.0, "")
    found = referee.pieces(list(referee.PARTS), options)
    assert len(found) == len(set(found))
    assert found[0].part == "images"
    assert found[-1].part == "couplings"
    names = {piece.name for piece in found}
    assert {images.CHAINS, images.DIGITS, bits.FLOORS} <= names
    assert {lattice.name for lattice in options.lattices().lattices} <= names


@pytest.mark.parametrize(("late", "scored"), [(True, 2), (False, 6)])
def test_scoring_that_is_cut_keeps_its_first_rows(late, scored, monkeypatch):
    monkeypatch.setattr(images, "TRIED", (4, 2))
    base = ProductBase(Space([Category(2)] * 16))
    g, test = ImageNet(base, (4, 4), (8, 16)), base.sample(9, torch.Generator().manual_seed(0))
    size = images.QUICK._replace(rows=6, orders=2)
    end = time.perf_counter() + (-1 if late else 600)
    nats, orders = images.chain_rule(g, test, size, 4, end)
    assert (len(nats), orders) == (scored, 2)
    assert nats.tolist() == pytest.approx([16 * math.log(2)] * scored)


def test_scoring_has_its_seconds_before_training():
    base = ProductBase(Space([Category(2)] * 16))
    g, test = ImageNet(base, (4, 4), (8, 16)), base.sample(9, torch.Generator().manual_seed(0))
    plan = images.scoring_plan(g, test, images.QUICK._replace(rows=9), left=1000.0)
    assert plan.rows == 9
    assert 0 < plan.reserved < 500
    short = images.scoring_plan(g, test, images.QUICK._replace(rows=9), left=0.0)
    assert short.reserved > 0


def test_a_run_that_is_cut_leaves_a_file_that_names_what_is_missing(tmp_path):
    class Arguments:
        quick, device, out, workers = True, "cpu", tmp_path, 0

    options = referee.Options(True, "cpu", None, None, 1.0, "")
    todo = referee.pieces(["ising", "couplings"], options)
    files = referee.Files(Arguments, options, todo)
    for done in worked(
        todo[:1], lambda piece, until: lattices.constant(piece.name, options.lattices(), "cpu"), 0, 2e10
    ):
        files.add(done)
    kept = json.loads((tmp_path / "referee-ising-quick.json").read_text())
    assert kept["settings"]["pieces left out"] == []
    assert {record["metric"] for record in kept["records"]} >= {"log Z, exact", "width of the bracket"}
    assert not (tmp_path / "referee-couplings-quick.json").exists()


def test_bits_in_turn_are_the_bits_of_both_coordinates_high_ones_first():
    x = np.random.default_rng(0).integers(2, size=(50, 32))
    assert (ours.separated(ours.interleaved(x)) == x).all()
    signs = np.zeros((1, 32), int)
    signs[0, [0, 16]] = 1
    assert ours.interleaved(signs)[0].nonzero()[0].tolist() == [0, 1]


def weighed(rows, left):
    """The probability of rows of bits under all trees of prefixes, by the definition."""
    if left == 0 or not len(rows):
        return 1.0
    zeros, ones = ((rows[:, 0] == b).sum() for b in (0, 1))
    split = beta(zeros + 0.5, ones + 0.5) / math.pi
    for bit in (0, 1):
        split *= weighed(rows[rows[:, 0] == bit, 1:], left - 1)
    return (split + 2.0 ** (-left * len(rows))) / 2


def test_counts_of_prefixes_weigh_all_trees_sum_to_one_and_draw_what_they_say():
    rng = np.random.default_rng(0)
    rows = (rng.random((40, 4)) < [0.2, 0.9, 0.5, 0.7]).astype(int)
    states = np.arange(16)[:, None] >> np.arange(3, -1, -1) & 1
    tree = ours.PrefixTree(rows)
    p = np.exp(tree.log_prob(states))
    slow = [weighed(np.vstack([rows, state]), 4) / weighed(rows, 4) for state in states]
    assert p == pytest.approx(slow)
    assert p.sum() == pytest.approx(1)
    n = 20_000
    seen = np.bincount(tree.sample(n, rng) @ [8, 4, 2, 1], minlength=16) / n
    assert np.abs((seen - p) / np.sqrt(p * (1 - p) / n)).max() < 4.5
