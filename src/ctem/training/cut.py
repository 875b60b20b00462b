"""Whether a training was cut while it still improved, and whether a fit took too long, in a sentence."""

from __future__ import annotations

from ctem.training.recipe import History

__all__ = ["cut_by_time", "overrun", "still_improving"]

RECENT = 0.9  # the best step is beyond this share of all steps
LATE = 1.1  # times ``max_time``


def cut_by_time(max_time: float | None, steps: int, longest: int) -> bool:
    """Whether a time may have ended a training: it took fewer steps than its settings allow.

    >>> cut_by_time(60.0, steps=90, longest=100), cut_by_time(60.0, 100, 100), cut_by_time(None, 90, 100)
    (True, False, False)
    """
    return max_time is not None and steps < longest


def still_improving(history: History) -> str:
    """A remark on a training that ended at its limit while the held-out loss still fell; none on others.

    A training that goes on ends when twice the steps gain little, so that it would take about as long again to know.

    >>> still_improving(History([10, 20], [1.0, 0.5], [1.0, 0.5], best_step=20, best_loss=0.5, seconds=240.0))
    'still improving: training ended at its limit while held-out rows still gained; about 4 more minutes would help'
    >>> still_improving(History([10, 20], [1.0, 0.5], [1.0, 0.5], best_step=10, best_loss=0.5))
    ''
    """
    if history.stopped_early or not history.step or history.best_step < RECENT * history.step[-1]:
        return ""
    minutes, seconds = round(history.seconds / 60), max(1, round(history.seconds))
    count, unit = (minutes, "minute") if history.seconds >= 60 else (seconds, "second")
    return (
        "still improving: training ended at its limit while held-out rows still gained; "
        f"about {count} more {unit}{'s' * (count != 1)} would help"
    )


def overrun(max_time: float, read: float, trained: float, judged: float) -> str:
    """A remark on a fit that took more than a tenth longer than it should, and where the seconds went; none on others.

    >>> overrun(10.0, read=7.0, trained=3.0, judged=6.0)
    'the fit took 16 seconds and not 10: 7 to read the columns, 3 to train, 6 to judge; fewer columns take less'
    >>> overrun(10.0, read=1.0, trained=8.0, judged=1.5)
    ''
    """
    total = read + trained + judged
    if total <= LATE * max_time:
        return ""
    return (
        f"the fit took {total:.3g} seconds and not {max_time:.3g}: {read:.3g} to read the columns, "
        f"{trained:.3g} to train, {judged:.3g} to judge; fewer columns take less"
    )
