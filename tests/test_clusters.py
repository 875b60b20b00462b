"""The guide to clusters: its code runs, as it stands there, where the packages are installed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small import SMALL

from ctem import CTEM

GUIDE = Path(__file__).parents[1] / "docs" / "guides" / "clusters.md"
ENDS = {
    "Dask": ("dask.dataframe", "found = scores.compute().tolist()"),
    "Spark": (
        "pyspark",
        "import pandas as pd\nfound = pd.read_parquet('scores').sort_values('mass').log_density.tolist()",
    ),
    "A service": (
        "fastapi",
        "from fastapi.testclient import TestClient\n"
        "rows = json.loads(pd.read_parquet('folder').to_json(orient='records'))\n"
        "client = TestClient(app)\n"
        "found = client.post('/score', json=rows).json()\n"
        "refused = client.post('/score', json=[{'mass': 'heavy', 'species': 'Adelie'}])\n"
        "assert refused.status_code == 422 and 'mass' in refused.json()['detail']",
    ),
}


def code(section):
    text = GUIDE.read_text("utf-8").partition(f"## {section}\n")[2].partition("\n## ")[0]
    return re.search(r"```\n((?:from|import).*?)```", text, re.DOTALL)[1]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("section", ENDS)
def test_the_code_of_the_guide_gives_the_scores_of_the_model(tmp_path, section):
    package, end = ENDS[section]
    pytest.importorskip(package)
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {"mass": np.sort(rng.normal(size=200)), "species": rng.choice(["Adelie", "Gentoo"], 200)}
    )
    (tmp_path / "folder").mkdir()
    for i in range(2):
        rows[100 * i : 100 * (i + 1)].to_parquet(tmp_path / f"folder/{i}.parquet")
    model = CTEM(**SMALL).fit(rows)
    model.save(tmp_path / "model.ctem")
    script = f"import json\n{code(section)}\n{end}\nopen('found.json', 'w').write(json.dumps(found))\n"
    (tmp_path / "program.py").write_text(script)
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "program.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-2000:]
    found = json.loads((tmp_path / "found.json").read_text())
    assert np.allclose(found, model.score_samples(rows), rtol=0, atol=1e-5)
