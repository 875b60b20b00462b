"""Every experiment runs with --quick, and the README's example runs as written."""

import re
import runpy
import sys

import pytest
import torch

SCRIPTS = [
    "ablation",
    "adult",
    "anomalies --systems CTEM",
    "binary",
    "demo",
    "figures",
    "foundation",
    "imputation --systems CTEM",
    "mixed",
    "mnist",
    "picture",
    "robustness",
    "speed",
    "stress",
    "table1",
    "table2",
    "table2_choices",
    "tables --systems CTEM",
]


@pytest.fixture
def settings_of_torch():
    """What a script sets for its process goes back."""
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore:log Z rests on")  # quick runs have few draws
@pytest.mark.filterwarnings("ignore:__array__ implementation")  # matplotlib asks a tensor
@pytest.mark.usefixtures("settings_of_torch")
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_script_runs_quickly(script, pytestconfig, monkeypatch):
    name, *rest = script.split()
    path = pytestconfig.rootpath / "experiments" / f"{name}.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--quick", *rest])
    monkeypatch.syspath_prepend(str(path.parent))
    runpy.run_path(str(path), run_name="__main__")


def test_the_readme_examples_run_as_written(pytestconfig, tmp_path, monkeypatch):
    text = (pytestconfig.rootpath / "README.md").read_text(encoding="utf8")
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code.replace("verbose=1", "max_steps=20"), {})
    assert (tmp_path / "penguins.ctem").exists()
