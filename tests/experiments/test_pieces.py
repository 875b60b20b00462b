"""Pieces under a clock: results as they come, failures named, what is late left out."""

import json
import operator
import time

import pytest

from experiments.energies import bits, images, lattices, referee
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
