"""Loading public tables: checked, cached, and clear about what is wrong."""

import gzip
import hashlib

import numpy as np
import pytest

from ctem.datasets import (
    BINARY,
    TABLES,
    Splits,
    digits,
    downloads,
    load_binarized_mnist,
    load_binary,
    load_mnist,
    load_table,
)

ROWS = b"M,0.5,0.4,0.1,0.5,0.2,0.1,0.15,15\nF,0.4,0.3,0.1,0.2,0.1,0.05,0.07,7\n"


@pytest.fixture
def abalone(monkeypatch):
    """Two rows under the name of abalone."""
    pytest.importorskip("pandas")
    table = TABLES["abalone"]._replace(checksum=hashlib.sha256(ROWS).hexdigest(), source="file:///nowhere")
    monkeypatch.setitem(TABLES, "abalone", table)
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


def test_titanic_keeps_its_gaps_its_booleans_and_its_whole_numbers(monkeypatch, tmp_path):
    pytest.importorskip("pandas")
    text = b"survived,sex,age,deck,alone\n0,male,22.0,,False\n1,female,,C,True\n"
    made = TABLES["titanic"]._replace(checksum=hashlib.sha256(text).hexdigest(), source="file:///nowhere")
    monkeypatch.setitem(TABLES, "titanic", made)
    path = tmp_path / "tables" / made.path
    path.parent.mkdir(parents=True)
    path.write_bytes(text)
    found = load_table("titanic", tmp_path)
    assert found.isna().sum().to_dict() == {"survived": 0, "sex": 0, "age": 1, "deck": 1, "alone": 0}
    assert found["survived"].dtype.kind == "i"
    assert found["alone"].dtype.kind == "b"


@pytest.mark.parametrize("name", ["source.zip#inside.csv", "source.gz"])
def test_a_packed_file_of_unknown_hash_is_left_to_the_user(abalone, tmp_path, monkeypatch, name):
    archive = (tmp_path / name.partition("#")[0]).as_uri()
    monkeypatch.setitem(TABLES, "abalone", abalone._replace(source=f"{(tmp_path / 'x').as_uri()[:-1]}{name}"))
    inside = "inside.csv" if "#" in name else "abalone.data"
    with pytest.raises(FileNotFoundError, match=rf"{archive} is packed and .* put its {inside} there"):
        load_table("abalone", tmp_path)
    assert not (tmp_path / "tables").exists()


def test_every_download_of_a_table_is_plain_text_or_left_to_the_user():
    packed = {
        name for name, table in TABLES.items() if table.source.partition("#")[0].endswith((".zip", ".gz"))
    }
    assert packed == {
        "bank"
    }  # its loader says where to get it: test_a_packed_file_of_unknown_hash_is_left_to_the_user


def test_a_packed_file_without_end_is_refused_before_it_fills_the_memory(abalone, tmp_path, monkeypatch):
    monkeypatch.setattr(downloads, "LARGEST", 10_000)
    zeros = bytes(10**6)
    path = tmp_path / "tables" / f"{abalone.path}.gz"
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.compress(zeros))
    with pytest.raises(ValueError, match=r"abalone\.data\.gz: expected at most 10000 bytes; there are more"):
        load_table("abalone", tmp_path)
    for name, content in (("bomb.gz", (bomb := gzip.compress(zeros))), ("plain", zeros)):
        (tmp_path / name).write_bytes(content)
        known = hashlib.sha256(bomb).hexdigest() if name == "bomb.gz" else None
        with pytest.raises(ValueError, match="expected at most 10000 bytes; there are more"):
            downloads.read(tmp_path / "absent", f"file://{tmp_path}/{name}", "", known)
    assert not (tmp_path / "absent").exists()


def test_a_binary_benchmark_is_three_files_of_bits(monkeypatch, tmp_path):
    folder = tmp_path / "debd" / "nltcs"
    folder.mkdir(parents=True)
    texts = {"train": b"0,1\n1,1\n", "valid": b"0,0\n", "test": b"1,0\n"}
    for split, text in texts.items():
        (folder / f"nltcs.{split}.data").write_bytes(text)
    monkeypatch.setitem(BINARY, "nltcs", tuple(hashlib.sha256(text).hexdigest() for text in texts.values()))
    splits = load_binary("nltcs", tmp_path)
    assert [part.tolist() for part in splits] == [[[0, 1], [1, 1]], [[0, 0]], [[1, 0]]]


SMALL = {  # two images of 2 × 3 pixels and their labels, as idx files
    "train-images-idx3-ubyte": bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 3, *range(12)]),
    "train-labels-idx1-ubyte": bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]),
}
SMALL |= {name.replace("train", "t10k"): content for name, content in SMALL.items()}
BITS = Splits(np.array([[0, 1, 1]]), np.array([[1, 0, 0], [1, 1, 1]]), np.array([[0, 0, 1]]))
TEXTS = (b"0 1 1\n", b"1 0 0\n1 1 1\n", b"0 0 1\n")


@pytest.fixture
def small_mnist(monkeypatch, tmp_path):
    """Two images under the names of MNIST's, at an address of this machine."""
    source = tmp_path / "source"
    source.mkdir()
    monkeypatch.setattr(digits, "_IDX", {})
    for name, content in SMALL.items():
        offered(source, name, content)
    monkeypatch.setattr(digits, "_IDX_SOURCE", source.as_uri())
    return source


def offered(source, name, content):
    packed = gzip.compress(content)
    (source / f"{name}.gz").write_bytes(packed)
    digits._IDX[name] = (hashlib.sha256(content).hexdigest(), hashlib.sha256(packed).hexdigest())


def test_a_packed_download_is_checked_before_it_is_unpacked(small_mnist, tmp_path):
    name = "train-images-idx3-ubyte.gz"
    (small_mnist / name).write_bytes(b"no gzip file, which would be another error")
    with pytest.raises(
        ValueError, match=rf"{name}: expected SHA-256 \w+; got \w+: another or a damaged file"
    ):
        load_mnist(tmp_path)
    assert not (tmp_path / "mnist").exists()


def test_mnist_is_downloaded_once_unpacked_and_checked(small_mnist, tmp_path):
    for _ in range(2):
        found = load_mnist(tmp_path)
        assert found.train.tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
        assert found.test_labels.tolist() == [7, 9]
        for path in small_mnist.iterdir():
            path.unlink()
    name = "t10k-images-idx3-ubyte"
    (tmp_path / "mnist" / name).write_bytes(SMALL[name] + b"1")
    with pytest.raises(ValueError, match=f"{name}: expected SHA-256"):
        load_mnist(tmp_path)


def test_an_idx_file_of_another_length_is_refused(small_mnist, tmp_path):
    name, short = "train-labels-idx1-ubyte", SMALL["train-labels-idx1-ubyte"][:-1]
    offered(small_mnist, name, short)
    with pytest.raises(ValueError, match=f"{name}: expected an idx file of bytes"):
        load_mnist(tmp_path)


def test_binarised_mnist_is_the_same_packed_or_as_text(monkeypatch, tmp_path):
    checksums = tuple(hashlib.sha256(text).hexdigest() for text in TEXTS)
    monkeypatch.setattr(digits, "_BINARIZED", checksums)
    for folder in ("texts", "npz"):
        (tmp_path / folder / "binarized_mnist").mkdir(parents=True)
    for split, text in zip(Splits._fields, TEXTS, strict=True):
        (tmp_path / "texts" / "binarized_mnist" / f"binarized_mnist.{split}.data").write_bytes(text)
    packed = tmp_path / "npz" / "binarized_mnist" / "binarized_mnist.npz"
    np.savez_compressed(packed, **BITS._asdict())
    for folder in ("texts", "npz"):
        for found, truth in zip(load_binarized_mnist(tmp_path / folder), BITS, strict=True):
            assert found.tolist() == truth.tolist()
    np.savez_compressed(packed, **BITS._replace(test=1 - BITS.test)._asdict())
    with pytest.raises(ValueError, match=r"binarized_mnist\.npz, test: expected SHA-256"):
        load_binarized_mnist(tmp_path / "npz")
