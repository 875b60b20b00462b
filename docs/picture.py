"""The pictures of a report in the README and on the site: fits the Palmer penguins and looks at the report in Chromium.

python docs/picture.py [MODEL.ctem]        (or: make picture)
"""

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from ctem import CTEM
from ctem.datasets import load_penguins
from ctem.report import write_report

OUT = Path(__file__).parent
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--allow-file-access-from-files",
)
PATIENT = "--virtual-time-budget=20000"
SECTIONS = "<style>section:not(#ask), nav, .watch, footer {{ display: none !important }} {}</style></head>"
TOP, ASK = SECTIONS.format(""), SECTIONS.format("header { display: none } section { border: 0 }")
ASKED = """<script>addEventListener("load", () => {{
  const cards = [...document.querySelectorAll(".card")], press = (i) => cards[i].querySelector("[aria-pressed]").click();
  {}
}});</script></body>"""
RANGES = """press(2); press(0);
  [0, 2].forEach((i) => cards[0].querySelectorAll("input[type=checkbox]")[i].click());
  cards[6].querySelector("select").value = "0"; cards[6].querySelector("select").dispatchEvent(new Event("change"));"""
SPECIES = """const menu = cards[0].querySelector("select");
  menu.value = [...menu.options].find((each) => each.text === "Gentoo").value; menu.dispatchEvent(new Event("change"));"""
OUTLIER = """document.querySelector(".load").click(); cards[0].querySelector(".forget").click(); press(5);"""
PHONE = (
    '<body style="margin: 0"><iframe style="border: 0" width="390" height="{height}" src="{page}"></iframe>'
)


def main() -> None:
    """Fit, or load, and draw."""
    browser = next((path for path in map(shutil.which, NAMES) if path), None)
    if browser is None:
        raise SystemExit("no Chromium found: install one to draw the report.")
    X = load_penguins()
    model = CTEM.load(sys.argv[1]) if len(sys.argv) > 1 else CTEM(random_state=0).fit(X)
    with tempfile.TemporaryDirectory() as folder:
        report = write_report(model, X, Path(folder) / "report.html", name="penguins.csv").read_text("utf-8")
        report = re.sub(r"<meta http-equiv[^>]*>", "", report)  # which would stop the script that asks
        desktop = report.replace("</body>", ASKED.format(RANGES))
        dark = report.replace("(prefers-color-scheme: dark)", "all").replace("</body>", ASKED.format(OUTLIER))
        first = report.replace("</body>", ASKED.format(SPECIES))
        draw(browser, Path(folder), "report", with_style(first, TOP), 1200, 1425)
        draw(browser, Path(folder), "explorer-desktop", with_style(desktop, ASK), 1200, 1640)
        draw(browser, Path(folder), "explorer-phone", with_style(dark, ASK), 390, 2600)


def with_style(page: str, style: str) -> str:
    """The page with parts of it left out."""
    return page.replace("</head>", style, 1)


def draw(browser: str, folder: Path, name: str, page: str, width: int, height: int) -> None:
    """A picture of a page; a narrow one stands in a frame, since no window is as narrow as a phone."""
    inner, outer, shot = folder / f"{name}.html", folder / f"{name}-outer.html", folder / f"{name}.png"
    inner.write_text(page, "utf-8")
    outer.write_text(PHONE.format(height=height, page=inner.as_uri()), "utf-8")
    shown = outer if width < 500 else inner
    options = [PATIENT, f"--window-size={max(width, 500)},{height}", f"--user-data-dir={folder / 'profile'}"]
    command = [browser, *QUIET, *options, f"--screenshot={shot}", shown.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    with Image.open(shot) as picture:
        picture.convert("RGB").crop((0, 0, width, height)).quantize(64).save(
            OUT / f"{name}.png", optimize=True
        )
    print(f"{OUT / name}.png: {(OUT / f'{name}.png').stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
