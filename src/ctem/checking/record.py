"""What a check found: the verdict, the reasons in words, the numbers for an appendix, and a page."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ctem import __version__
from ctem.persistence.atomic import replacing
from ctem.report.markup import tag, text

__all__ = ["Check", "Side"]

Verdict = Literal["certified", "bracketed", "unknown"]
STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:46rem;margin:2rem auto;padding:0 1rem;color:#1d2433}"
    "h1{font-size:1.4rem}table{border-collapse:collapse}td,th{padding:.2rem .9rem .2rem 0;text-align:left}"
    "td.n{text-align:right;font-variant-numeric:tabular-nums}.fault{color:#a3261b}"
)


class Side(NamedTuple):
    """One estimate of log Z that errs to one side.

    >>> Side("annealing up", "low", 3.2, 0.01, 900.0).value
    3.2
    """

    method: str
    side: Literal["low", "high"]
    value: float
    se: float
    ess: float


@dataclass(frozen=True)
class Check:
    """The verdict on a log-potential.

    Arguments:
        verdict: "certified": log Z is exact; "bracketed": it lies between two estimates that err to different sides and
            agree; "unknown": no statement is possible.
        reasons: why, in sentences.
        faults: what is wrong, in sentences; empty where nothing is.
        space, method: what was checked, and how.
        value, se: log Z; None where no point estimate can be given.
        low, high: between which it lies, three standard errors included; None where unknown.
        ess: effective draws that the better side rests on; None where nothing is drawn.
        evaluations: rows at which the log-potential was evaluated.
        adjusted: whether every transition that was used is Metropolis-adjusted: always, here.
        sides: all estimates.
        seconds, seed, version: of this check.

    >>> check = Check("certified", ("All 8 states were added up.",), (), "3 bits", "enumerate", 2.1, 0.0, 2.1, 2.1)
    >>> print(check)
    certified: log Z = 2.1000 (exact, enumerate)
    - All 8 states were added up.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    faults: tuple[str, ...]
    space: str
    method: str
    value: float | None
    se: float | None
    low: float | None
    high: float | None
    ess: float | None = None
    evaluations: int = 0
    adjusted: bool = True
    sides: tuple[Side, ...] = ()
    seconds: float = 0.0
    seed: int = 0
    version: str = field(default=__version__)

    def __str__(self) -> str:
        lines = [f"{self.verdict}: {self._constant()}"]
        return "\n".join(
            lines + [f"! {each}" for each in self.faults] + [f"- {each}" for each in self.reasons]
        )

    def to_json(self) -> dict[str, Any]:
        """All of it as plain values, for ``json.dumps`` and an appendix; infinite numbers are None."""
        record = asdict(self) | {"sides": [side._asdict() for side in self.sides]}
        return {key: _plain(value) for key, value in record.items()}

    def save(self, path: str | Path) -> None:
        """Write the record to NAME.json, or the page to NAME.html."""
        kind = Path(path).suffix.lower()
        if kind not in (".json", ".html"):
            raise ValueError(f"path: expected a name that ends in .json or .html; got {str(path)!r}.")
        record = json.dumps(self.to_json(), indent=1, ensure_ascii=False) + "\n"
        with replacing(path) as file:
            file.write((record if kind == ".json" else self.to_html()).encode())

    def to_html(self) -> str:
        """A small page of its own."""
        head = tag("meta", "", charset="utf-8") + tag("title", "log Z, checked") + tag("style", STYLE)
        return f"<!doctype html><html lang=en><head>{head}</head><body>{self._repr_html_()}</body></html>"

    def _repr_html_(self) -> str:
        faults = "".join(tag("li", text(each), "fault") for each in self.faults)
        reasons = "".join(tag("li", text(each)) for each in self.reasons)
        title = tag("h1", f"{text(self.verdict)}: {text(self._constant())}")
        facts = f"{self.space}; {self.evaluations:,} evaluations; {self.seconds:.1f} s; ctem {self.version}"
        return title + tag("ul", faults + reasons) + self._table() + tag("p", text(facts))

    def _table(self) -> str:
        if not self.sides:
            return ""
        heads = "".join(tag("th", each) for each in ("estimate", "errs", "log Z", "± se", "effective draws"))
        rows = [
            tag("td", text(s.method))
            + tag("td", s.side)
            + "".join(
                tag("td", f"{value:,.{digits}f}", "n") for value, digits in zip(s[2:], (4, 4, 0), strict=True)
            )
            for s in self.sides
        ]
        return tag("table", tag("tr", heads) + "".join(tag("tr", row) for row in rows))

    def _constant(self) -> str:
        if self.value is None or self.low is None or self.high is None:
            return "no statement about log Z"
        if self.verdict == "certified":
            return f"log Z = {self.value:.4f} (exact, {self.method})"
        return f"log Z = {self.value:.4f} ± {self.se:.4f}, between {self.low:.4f} and {self.high:.4f}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
