"""Every experiment runs with --quick, and the README's example runs as written."""

import re
import subprocess
import sys

import pytest
import torch


@pytest.mark.parametrize("script", ["binary", "continuous_spacetime", "demo", "foundation", "nltcs"])
def test_the_script_runs_quickly(script, pytestconfig):
    command = [sys.executable, f"experiments/{script}.py", "--quick"]
    run = subprocess.run(command, cwd=pytestconfig.rootpath, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_the_readme_example_runs_and_gives_normalised_log_densities(pytestconfig):
    text = (pytestconfig.rootpath / "README.md").read_text(encoding="utf8")
    code, clocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names = {}
    exec(code.replace("progress=True", "progress=False"), names)
    mean = float(names["log_density"].detach().mean())
    assert mean == pytest.approx(-3.94, abs=0.1)  # minus the entropy of N(0, 1) × N(0, 9)
    generator = torch.Generator().manual_seed(0)
    rows = (torch.rand(300, 16, generator=generator) < 0.3).float()
    names = {"X": rows, "valid": rows[:50], "generator": generator}
    exec(clocks.replace("steps=3000", "steps=20"), names)
    assert names["chain"].joint(rows).shape == (300,)
