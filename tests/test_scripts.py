"""Every experiment runs with --quick, and the README's example runs as written."""

import re
import subprocess
import sys

import pytest
import torch

SCRIPTS = [
    "ablation",
    "adult",
    "anomalies --systems CTEM",
    "binary",
    "choose",
    "continuous_spacetime",
    "demo",
    "figures",
    "foundation",
    "imputation",
    "mixed",
    "mnist",
    "nltcs",
    "picture",
    "robustness",
    "speed",
    "stress",
    "table1",
    "table2",
    "table2_choices",
    "tables --systems CTEM independent",
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_script_runs_quickly(script, pytestconfig):
    name, *rest = script.replace("independent", "independent columns").split(" ", 3)
    command = [sys.executable, f"experiments/{name}.py", "--quick", *rest]
    run = subprocess.run(command, cwd=pytestconfig.rootpath, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_readme_examples_run_as_written(pytestconfig, tmp_path, monkeypatch):
    text = (pytestconfig.rootpath / "README.md").read_text(encoding="utf8")
    table, code, clocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(table.replace("random_state=0, verbose=1", "random_state=0, max_steps=20"), names)
    assert (tmp_path / "penguins.ctem").exists()
    names = {}
    exec(code.replace("progress=True", "progress=False"), names)
    mean = float(names["log_density"].detach().mean())
    assert mean == pytest.approx(-3.94, abs=0.1)  # minus the entropy of N(0, 1) × N(0, 9)
    generator = torch.Generator().manual_seed(0)
    rows = (torch.rand(300, 16, generator=generator) < 0.3).float()
    names = {"X": rows, "valid": rows[:50], "generator": generator}
    exec(clocks.replace("steps=3000", "steps=20"), names)
    assert names["chain"].joint(rows).shape == (300,)
