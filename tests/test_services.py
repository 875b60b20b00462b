"""The guide to clusters: its code runs as it stands there, with stand-ins for the packages that share the work."""

import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from small import TINY

from ctem import CTEM

GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "clusters.md"


def code(section):
    text = GUIDE.read_text("utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.search(r"```\n((?:from|import).*?)```", text, re.DOTALL)[1]


def read_parts(folder):
    return [pd.read_parquet(path) for path in sorted(Path(folder).glob("*.parquet"))]


def dask():
    """``dask.dataframe`` of a folder: a function of each part, one after the other."""

    class Parts(SimpleNamespace):
        def map_partitions(self, function, meta):
            scores = [function(part) for part in self.parts]
            assert {each.dtype for each in scores} == {np.dtype(meta[1])}
            return pd.concat(scores)

    return {"dask": {}, "dask.dataframe": {"read_parquet": lambda folder: Parts(parts=read_parts(folder))}}


def spark():
    """``pyspark`` on one machine: a task is an iterator of tables."""

    class Rows(SimpleNamespace):
        _jdf = SimpleNamespace(schema=lambda: SimpleNamespace(toDDL=lambda: "mass double, species string"))

        def mapInPandas(self, function, schema):
            names = [column.split()[0] for column in schema.split(", ")]
            found = pd.concat(function(iter(self.parts)))[names]
            return SimpleNamespace(write=SimpleNamespace(parquet=found.to_parquet))

    context = SimpleNamespace(addFile=lambda path: None)
    reader = SimpleNamespace(parquet=lambda folder: Rows(parts=read_parts(folder)))
    session = SimpleNamespace(sparkContext=context, read=reader)
    builder = SimpleNamespace(getOrCreate=lambda: session)
    return {
        "pyspark": {"SparkFiles": SimpleNamespace(get=lambda name: name)},
        "pyspark.sql": {"SparkSession": SimpleNamespace(builder=builder)},
    }


def fastapi():
    """``fastapi`` without a network: what answers an address is called."""

    class FastAPI:
        def post(self, address):
            return lambda function: function

    class HTTPException(Exception):
        def __init__(self, status_code, detail):
            super().__init__(status_code, detail)

    return {"fastapi": {"FastAPI": FastAPI, "HTTPException": HTTPException}}


def posted(names):
    """What the service answers to the rows, after it has refused one."""
    with pytest.raises(Exception, match="mass") as refusal:
        names["score"]([{"mass": "heavy", "species": "Adelie"}])
    assert refusal.value.args[0] == 422
    return names["score"](json.loads(pd.concat(read_parts("folder")).to_json(orient="records")))


SECTIONS = {
    "Dask": (dask, lambda names: names["scores"].tolist()),
    "Spark": (spark, lambda names: pd.read_parquet("scores").sort_values("mass").log_density.tolist()),
    "A service": (fastapi, posted),
}


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(0)
    mass, species = np.sort(rng.normal(size=200)), rng.choice(["Adelie", "Gentoo"], 200)
    return pd.DataFrame({"mass": mass, "species": species})


@pytest.mark.parametrize("section", SECTIONS)
def test_the_code_of_the_guide_gives_the_scores_of_the_model(rows, tmp_path, monkeypatch, section):
    modules, scores = SECTIONS[section]
    for name, content in modules().items():
        module = ModuleType(name)
        module.__dict__.update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for i in range(2):
        rows[100 * i : 100 * (i + 1)].to_parquet(f"folder/{i}.parquet")
    model = CTEM(**TINY).fit(rows)
    model.save("model.ctem")
    names = {}
    exec(compile(code(section), section, "exec"), names)
    assert np.allclose(scores(names), model.score_samples(rows), rtol=0, atol=1e-5)
