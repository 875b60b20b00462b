"""Disks that are full, used up or broken, at the file operations of every command: the old file stays, and one line."""

import os

import pytest
from children import alone
from commands import command, fit
from faults import broken, full, over_quota

pytestmark = pytest.mark.long

WRITERS = {
    "fit": lambda f, out: [*fit(f, out), "--overwrite"],
    "score": lambda f, out: ["score", str(f / "m.ctem"), str(f / "t.csv"), "-o", str(out), "-q"],
    "sample": lambda f, out: ["sample", str(f / "m.ctem"), "-n", "20", "-o", str(out), "-q"],
    "impute": lambda f, out: ["impute", str(f / "m.ctem"), str(f / "t.csv"), "-o", str(out), "-q"],
    "outliers": lambda f, out: ["outliers", str(f / "m.ctem"), str(f / "t.csv"), "-o", str(out), "-q"],
}
ENDINGS = {"fit": ["m.ctem"], "sample": ["t.csv", "t.parquet", "t.arrow"]}


@pytest.mark.parametrize("fault", [full, over_quota, broken], ids=lambda fault: fault.__name__)
@pytest.mark.parametrize("writer", WRITERS)
def test_a_disk_that_fails_leaves_the_old_file_and_one_line(folder, tmp_path, writer, fault, tally):
    failed = 0
    for name in ENDINGS.get(writer, ["t.csv"]):
        operations = alone(command, WRITERS[writer](folder, tmp_path / name)).value[2]
        for at in range(1, operations + 1, 5 if operations > 20 else 1):
            place = tmp_path / f"{name}-{at}"
            place.mkdir()
            (place / name).write_bytes(b"old")
            outcome = alone(command, WRITERS[writer](folder, place / name), at, fault)
            assert outcome.ending == "returned", outcome
            code, said, _ = outcome.value
            left = [each for each in os.listdir(place) if ".checkpoint." not in each]
            assert left == [name], left
            if code:
                failed += 1
                assert (code, said.count("\n")) == (1, 1), outcome
                assert said.startswith("ctem: error: "), said
                assert (place / name).read_bytes() == b"old"
    tally(
        "faults of a disk", {f"{fault.__name__.replace('_', ' ')}: one line, and the old file stays": failed}
    )
    assert failed >= 3
