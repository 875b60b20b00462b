"""Every experiment and the demo run with --quick."""

import importlib
import sys
from importlib.util import find_spec

import pytest
import torch

pytestmark = pytest.mark.long
SCRIPTS = [
    "binary.nats",
    "energies.referee",
    "images.labelled",
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
    "tables.anomalies",
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
    "tables.nats --systems CTEM --jobs 2",
    "tables.p_values",
    "tables.rules",
    "tables.samples --titanic",
    *(["tables.samples --systems CTEM"] if find_spec("xgboost") else []),  # an extra that tests do without
    "text.energy",
    "text.samplers",
]


@pytest.fixture
def settings_of_torch():
    """What a script sets for its process goes back."""
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.filterwarnings("ignore:log Z rests on")  # quick runs have few draws
@pytest.mark.filterwarnings("ignore:max_time. still improving")
@pytest.mark.filterwarnings("ignore:X. without .label.")
@pytest.mark.filterwarnings("ignore:__array__ implementation")  # matplotlib asks a tensor
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # Ray leaves processes to the system
@pytest.mark.usefixtures("settings_of_torch")
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_script_runs_quickly(script, pytestconfig, monkeypatch):
    name, *rest = script.split()
    path = pytestconfig.rootpath / "experiments" / f"{name.replace('.', '/')}.py"
    monkeypatch.setattr(sys, "argv", [str(path), "--quick", *rest])
    importlib.import_module(f"experiments.{name}").main()


def test_the_demo_runs_quickly(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["demo", "--quick"])
    importlib.import_module("examples.demo").main()
