"""What is released: the wheel and the sdist install into a clean environment, and two lines lead to a report."""

import json
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import ctem
from ctem.datasets import load_penguins

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def run(*command, **rest):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **rest)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment(folder):
    venv.create(folder, with_pip=True)
    return folder / "bin" / "python"


def test_the_version_is_the_same_everywhere():
    assert f"version: {ctem.__version__}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert newest is not None
    assert newest[1] == ctem.__version__


def test_the_python_that_runs_the_tests_is_one_that_the_package_names():
    named = {each.rpartition(" :: ")[2] for each in PROJECT["project"]["classifiers"] if "Python ::" in each}
    assert f"3.{sys.version_info.minor}" in named


def test_the_readme_fits_a_screen_and_its_links_lead_somewhere():
    text = (ROOT / "README.md").read_text("utf-8")
    assert len(text.splitlines()) <= 125
    links = re.findall(r"\]\(([^)#]+?)\)|src=\"([^\"]+)\"", text)
    inside = [link or picture for link, picture in links if "://" not in (link or picture)]
    assert len(inside) > 8
    assert not [link for link in inside if not (ROOT / link).exists()]


def test_the_readme_says_the_two_commands_and_ci_runs_its_tests():
    readme, ci = ((ROOT / name).read_text("utf-8").splitlines() for name in ("README.md", ".ci/run"))
    assert {"make demo", "make test"} <= {line.split("#")[0].strip() for line in readme}
    assert "make test" in ci


def measured(name, metric):
    """data set → what an experiment has found of our default call, as the README rounds it."""
    records = json.loads((ROOT / "experiments" / "results" / f"{name}.json").read_text("utf-8"))["records"]
    return {r["dataset"]: r for r in records if r["system"] in ("CTEM", "default") and r["metric"] == metric}


def test_the_readme_has_the_numbers_of_the_results():
    text = (ROOT / "README.md").read_text("utf-8").replace("−", "-")
    nats, passing = (measured("energy", metric) for metric in ("test nats", "C2ST"))
    rows = re.findall(
        r"^\| (\w+), [\d,]+(?: rows)? \| \**(-[\d.]+)\** ± ([\d.]+) \(\**([\d.]+)", text, re.MULTILINE
    )
    assert len(rows) == 10
    for name, mean, spread, share in rows:
        assert (mean, spread) == (f"{nats[name]['mean']:.2f}", f"{nats[name]['std']:.2f}"), name
        assert share == f"{passing[name]['mean']:.2f}", name
    drawn = re.search(r"\*\*Drawn rows\*\*.*?(?=\n\* )", text, re.DOTALL)
    assert drawn is not None
    found = dict(re.findall(r"(\w+) \**(0\.\d{3})\**(?: ± [\d.]+)?\s+\(Tab", drawn[0]))
    assert found == {name: f"{r['mean']:.3f}" for name, r in measured("samples", "C2ST, XGBoost").items()}


def best(name, dataset, system, metric):
    """One number of a result, and the published one beside it."""
    records = json.loads((ROOT / "experiments" / "results" / f"{name}.json").read_text("utf-8"))["records"]
    (found,) = [r for r in records if (r["dataset"], r["system"], r["metric"]) == (dataset, system, metric)]
    return found["mean"], found.get("paper")


OURS, ISE, FISHER = "ours, chosen", "ISE ×1e-2", "Fisher divergence"


def test_the_readme_has_the_numbers_of_the_papers_tables():
    """Each number of a row is a result, rounded as it is written: published, the paper's settings here, ours."""
    text = (ROOT / "README.md").read_text("utf-8")
    wanted = {}
    for name, system in (
        ("Spiral", "CTEM-S"),
        ("2-Gaussian", "CTEM-G"),
        ("Banana", "CTEM-G"),
        ("Two Rings", "CTEM-G"),
    ):
        here, printed = best("table1-ctem-2d", name, system, ISE)
        wanted[name] = [float(printed.split()[0]), here, best("table1-chosen-2d", name, OURS, ISE)[0]]
    for d in (10, 30):
        name, stopped = f"{d}-D mixture", f"{FISHER} at the lowest held-out loss"
        here, printed = best(f"table1-ctem-{d}d", name, "CTEM-G", FISHER)
        in_time = {
            10: ("table1-stopped-10d", name, "CTEM-G, stopped by held-out loss", FISHER),
            30: ("figures-curves", name, "CTEM-G", stopped),
        }
        ours = best(f"table1-chosen-{d}d", name, OURS, FISHER)[0]
        wanted[name] = [float(printed.split()[0]), here, best(*in_time[d])[0], ours]
    sets = "moons", "swissroll", "8-Gaussians"
    printed = [float(best("table2", f"{each}, paper-like", "CTEM (p)", "TV")[1].split()[0]) for each in sets]
    grids = [
        best("table2", f"{each}, primary", system, "TV")[0]
        for system in ("CTEM (p)", "ours: smooth energy")
        for each in sets
    ]
    wanted["grids"] = [*printed, *grids]
    digits, top = "the paper's configuration, cut to minutes", "classifier top-1"
    here, printed = best("mnist-paper", "binary MNIST, threshold ½", digits, top)
    slopes = best("mnist-slopes", "binary MNIST, fixed", "a clock per pixel, slopes", top)[0]
    wanted["MNIST"] = [float(printed.split()[0]), here, slopes]
    mixed = "R²×{0..15}, s = 2"
    wanted["R²"] = [
        best("mixed", mixed, system, "KL(truth‖model)")[0] for system in ("CTEM, joint kernel", "CTEM()")
    ]
    for name, values in wanted.items():
        row = re.search(rf"^\| {re.escape(name)}.*?\|(.*)\|$", text, re.MULTILINE)
        assert row is not None, name
        written = re.findall(r"\d+(?:\.\d+)?", row[1])
        assert written == [
            f"{v:.{len(w.partition('.')[2])}f}" for v, w in zip(values, written, strict=True)
        ], name


DEMO_ALONE = """
import importlib.metadata, re, runpy, sys
wanted = re.findall(r"^([\\w.-]+)==", open("locks/install.txt", encoding="utf-8").read(), re.MULTILINE)
plain = lambda name: re.sub(r"[-_.]+", "-", name).lower()
installed = {plain(name) for name in [*wanted, "torch", "ctem"]}
owners = importlib.metadata.packages_distributions()
developers = {name for name, owned in owners.items() if not installed & set(map(plain, owned))}
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in developers:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
assert "pandas" in developers
runpy.run_module("examples.demo")
"""


def test_the_demo_needs_only_what_make_demo_installs():
    run(sys.executable, "-c", DEMO_ALONE, cwd=ROOT)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, then the sdist."""
    folder = tmp_path_factory.mktemp("built")
    python = environment(folder / "builder")
    backend = PROJECT["build-system"]["requires"]
    done = subprocess.run([python, "-m", "pip", "install", "-qq", *backend], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"no package index can be reached: nothing was built ({done.stderr.strip()[-200:]})")
    run(python, "-m", "hatchling", "build", "-d", folder / "dist", cwd=ROOT)
    return sorted((folder / "dist").iterdir())


@pytest.mark.long
def test_the_wheel_holds_the_package_and_nothing_else(built):
    wheel, sdist = built
    assert sdist.name == f"ctem-{ctem.__version__}.tar.gz"
    names = zipfile.ZipFile(wheel).namelist()
    inside = {
        str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "ctem").rglob("*") if path.is_file()
    }
    held = {name for name in names if not name.startswith(f"ctem-{ctem.__version__}.dist-info/")}
    assert held == {name for name in inside if "__pycache__" not in name}


@pytest.mark.long
def test_two_lines_lead_from_an_installed_wheel_to_a_report(built, tmp_path):
    python = environment(tmp_path / "clean")
    run(python, "-m", "pip", "install", "-qq", "-c", ROOT / "constraints.txt", built[0])
    load_penguins().to_csv(tmp_path / "table.csv", index=False)
    lines = re.findall(r"^ctem (?:fit|report) .*$", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    small = lines[0].split("#")[0] + " --max-steps 20"
    for line in (small, lines[1]):
        run(
            "bash",
            "-c",
            line,
            cwd=tmp_path,
            env={"PATH": f"{python.parent}:/usr/bin:/bin", "HOME": str(tmp_path)},
        )
    assert (tmp_path / "report.html").read_text("utf-8").startswith("<!DOCTYPE html>")
    assert run(python.parent / "ctem", "--version") == f"ctem {ctem.__version__}\n"
    run(python, "-m", "pip", "install", "-qq", "--no-deps", "--force-reinstall", built[1])
    assert run(python, "-c", "import ctem; print(ctem.__version__)").strip() == ctem.__version__
