"""Every experiment runs with --quick, and the README's example runs as written."""

import importlib
import re
import sys

import pytest
import torch

SCRIPTS = [
    "binary.nats",
    "images.mnist",
    "paper.figures",
    "paper.mixed",
    "paper.robustness",
    "paper.stress",
    "paper.table1",
    "paper.table1 --choose",
    "paper.table2",
    "paper.table2 --choose",
    "tables.ablation",
    "tables.anomalies --systems CTEM",
    "tables.anomalies --adbench --systems CTEM k-NN",
    "tables.bench --systems CTEM",
    "tables.imputation --harpoon --systems CTEM",
    "tables.imputation --systems CTEM",
    "tables.imputation --uses",
    "tables.imputation --uses --peers",
    "tables.large",
    "tables.large --far",
    "tables.large --processes",
    "tables.nats --margins",
    "tables.nats --systems CTEM",
    "tables.samples --titanic",
    "tables.samples --systems CTEM",
]
NEEDS = {
    "tables.samples --systems CTEM": "xgboost",
    "tables.large --far": "ray",
}  # extras that tests do without


@pytest.fixture
def settings_of_torch():
    """What a script sets for its process goes back."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:log Z rests on")  # quick runs have few draws
@pytest.mark.filterwarnings("ignore:__array__ implementation")  # matplotlib asks a tensor
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Ray leaves processes to the system
@pytest.mark.usefixtures("settings_of_torch")
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_script_runs_quickly(script, pytestconfig, monkeypatch):
    if script in NEEDS:
        pytest.importorskip(NEEDS[script])
    name, *rest = script.split()
    path = pytestconfig.rootpath / "experiments" / f"{name.replace('.', '/')}.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--quick", *rest])
    importlib.import_module(f"experiments.{name}").main()


@pytest.mark.long
def test_the_demo_runs_quickly(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["demo", "--quick"])
    importlib.import_module("examples.demo").main()


def test_the_readme_examples_run_as_written(pytestconfig, tmp_path, monkeypatch):
    text = (pytestconfig.rootpath / "README.md").read_text(encoding="utf8")
    monkeypatch.chdir(tmp_path)
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code.replace("verbose=1", "max_steps=20, width=16, blocks=1, members=2"), {})
    assert (tmp_path / "penguins.ctem").exists()
