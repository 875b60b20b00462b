"""Loading public tables: checked, cached, and clear about what is wrong."""

import gzip
import hashlib
import zipfile

import pytest

from ctem import datasets
from ctem.datasets import TABLES, load_table

ROWS = b"M,0.5,0.4,0.1,0.5,0.2,0.1,0.15,15\nF,0.4,0.3,0.1,0.2,0.1,0.05,0.07,7\n"


@pytest.fixture
def abalone(monkeypatch):
    """Two rows under the name of abalone."""
    pytest.importorskip("pandas")
    table = TABLES["abalone"]._replace(checksum=hashlib.sha256(ROWS).hexdigest(), source="file:///nowhere")
    monkeypatch.setitem(datasets.TABLES, "abalone", table)
    return table


def test_a_table_is_read_from_the_folder_packed_or_not(abalone, tmp_path):
    path = tmp_path / "tables" / abalone.path
    path.parent.mkdir(parents=True)
    path.with_name(path.name + ".gz").write_bytes(gzip.compress(ROWS))
    assert load_table("abalone", tmp_path)["rings"].tolist() == [15, 7]
    path.write_bytes(ROWS)
    assert load_table("abalone", tmp_path)["sex"].tolist() == ["M", "F"]


def test_another_file_is_refused(abalone, tmp_path):
    path = tmp_path / "tables" / abalone.path
    path.parent.mkdir(parents=True)
    path.write_bytes(ROWS + b"M,0,0,0,0,0,0,0,1\n")
    with pytest.raises(ValueError, match=r"abalone\.data: expected SHA-256"):
        load_table("abalone", tmp_path)


def test_a_missing_file_that_cannot_be_downloaded_is_named(abalone, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"abalone\.data is not there and file:///nowhere"):
        load_table("abalone", tmp_path)


def test_a_member_of_a_zip_file_is_downloaded_once(abalone, tmp_path, monkeypatch):
    packed = tmp_path / "source.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("inside.csv", ROWS)
    monkeypatch.setitem(datasets.TABLES, "abalone", abalone._replace(source=f"{packed.as_uri()}#inside.csv"))
    assert len(load_table("abalone", tmp_path)) == 2
    packed.unlink()
    assert len(load_table("abalone", tmp_path)) == 2
