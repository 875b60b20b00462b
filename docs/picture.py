"""The picture of a report that the README shows: fits the Palmer penguins and looks at the report in Chromium.

python docs/picture.py [MODEL.ctem]        (or: make picture)
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from ctem import CTEM
from ctem.datasets import load_penguins
from ctem.report import write_report

OUT = Path(__file__).parent / "report.png"
WIDTH, HEIGHT = 1200, 1425
SHOWN = "<style>section:not(#ask), nav, .watch, footer { display: none !important }</style></head>"  # two parts of it
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=3000")


def main() -> None:
    """Fit, or load, and draw."""
    browser = next((path for path in map(shutil.which, NAMES) if path), None)
    if browser is None:
        raise SystemExit("no Chromium found: install one to draw the report.")
    X = load_penguins()
    model = CTEM.load(sys.argv[1]) if len(sys.argv) > 1 else CTEM(random_state=0).fit(X)
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder) / "report.html", Path(folder) / "report.png"
        write_report(model, X, page, name="penguins.csv")
        page.write_text(page.read_text("utf-8").replace("</head>", SHOWN, 1), "utf-8")
        size = f"--window-size={WIDTH},{HEIGHT}"
        command = [
            browser,
            *QUIET,
            size,
            f"--user-data-dir={folder}/profile",
            f"--screenshot={shot}",
            page.as_uri(),
        ]
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        with Image.open(shot) as picture:
            picture.convert("RGB").quantize(64).save(OUT, optimize=True)
    print(f"{OUT}: {OUT.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
