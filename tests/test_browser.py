"""The report in a real browser: no console message, nothing loaded from outside, no sideways scrolling on a phone."""

import json
import re
import shutil
import struct
import subprocess
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from ctem import CTEM
from ctem.report import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for path in map(shutil.which, NAMES) if path), None)
QUIET = (
    "--headless=new",
    "--no-sandbox",  # a container's root has no user namespaces
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--allow-file-access-from-files",
    "--enable-logging=stderr",
    "--v=0",
    "--virtual-time-budget=3000",
)
OWN = "not an origin"
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium found: the report was not opened in a browser"),
]

# Loads the page in a frame as wide as a phone, which a browser window cannot be, and reports what sticks out.
PHONE = """<!DOCTYPE html><title>waiting</title><style>body {{ margin: 0 }} iframe {{ border: 0 }}</style>
<iframe width="{width}" height="3000" src="{page}"></iframe>
<script>addEventListener("message", event => {{ document.title = event.data; }});</script>"""
PROBE = """<script>
const wide = [...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1);
const names = wide.map(e => e.tagName + "." + (e.className.baseVal ?? e.className)).slice(0, 5).join(" ");
parent.postMessage("width " + document.documentElement.scrollWidth + " of " + innerWidth + " " + names, "*");
</script>"""


class Visit(NamedTuple):
    dom: str
    console: list[str]
    requests: list[str]


def browse(folder, page, *options, quiet=QUIET):
    """Open a page; its DOM if asked for, its console messages, and what it asked the network for."""
    log = folder / "net.json"
    command = [BROWSER, *quiet, f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}"]
    run = subprocess.run(
        [*command, *options, page.as_uri()], capture_output=True, text=True, timeout=600, check=True
    )
    console = [line for line in run.stderr.splitlines() if "CONSOLE" in line]
    started = [event.get("params", {}) for event in json.loads(log.read_text("utf-8"))["events"]]
    # what the browser asks for on its own account has no origin
    asked = [p["url"] for p in started if "url" in p and p.get("initiator", OWN) != OWN]
    return Visit(run.stdout, console, [url for url in asked if not url.startswith(("file:", "data:"))])


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    rng = np.random.default_rng(0)
    side = rng.integers(3, size=200)
    X = pd.DataFrame(
        {
            "<script>console.error('ran')</script>": np.array(["Oslo", "<img src=//x.example/y>", "Røros"])[
                side
            ],
            "a_rather_long_name_of_a_column_that_should_not_make_a_phone_scroll_sideways": rng.normal(
                side, 0.5
            ),
            "rain": np.where(rng.random(200) < 0.3, 0.0, rng.lognormal(side, 0.5)),
            "born": pd.Timestamp("2000-01-01") + pd.to_timedelta(rng.integers(0, 900, 200), unit="D"),
            "word": np.where(rng.random(200) < 0.1, "w" * 300, "short"),
        }
    )
    model = CTEM(max_steps=30, width=16, blocks=1, members=2, orders=2, random_state=0).fit(X)
    return write_report(
        model, X, tmp_path_factory.mktemp("report") / "report.html", X.head(50), n_samples=100
    )


def test_the_report_opens_without_a_console_message(report, tmp_path):
    shot = tmp_path / "report.png"
    visit = browse(tmp_path, report, f"--screenshot={shot}", "--window-size=1280,3000")
    assert visit.console == []
    assert visit.requests == []
    header = shot.read_bytes()[:24]
    assert struct.unpack(">II", header[16:24]) == (1280, 3000)
    assert shot.stat().st_size > 50_000  # a blank page is far smaller


def test_this_check_would_see_a_script_an_error_and_an_outside_picture(tmp_path):
    page = tmp_path / "bad.html"
    page.write_text("<img src='http://x.example/y.png'><script>console.error('ran'); missing()</script>")
    visit = browse(tmp_path, page, "--dump-dom")
    text = "\n".join(visit.console)
    assert "ran" in text
    assert "missing is not defined" in text
    assert visit.requests == ["http://x.example/y.png"]


def test_the_policy_of_the_report_stops_what_an_escape_would_have_missed(report, tmp_path):
    page = tmp_path / "hurt.html"
    hurt = "<img src='http://x.example/y.png'><script>document.title = 'ran'</script></body>"
    page.write_text(report.read_text("utf-8").replace("</body>", hurt), "utf-8")
    visit = browse(tmp_path, page, "--dump-dom")
    assert "<title>ctem report</title>" in visit.dom
    assert any("Content Security Policy" in line for line in visit.console)
    assert visit.requests == []


@pytest.mark.parametrize("width", [360, 390, 768])
def test_nothing_sticks_out_on_a_phone(report, width, tmp_path):
    inner, outer = tmp_path / "inner.html", tmp_path / "outer.html"
    page = re.sub(r"<meta http-equiv[^>]*>", "", report.read_text("utf-8"))
    inner.write_text(page.replace("</body>", PROBE + "</body>"), "utf-8")
    outer.write_text(PHONE.format(width=width, page=inner.as_uri()), "utf-8")
    assert f"<title>width {width} of {width} </title>" in browse(tmp_path, outer, "--dump-dom").dom
