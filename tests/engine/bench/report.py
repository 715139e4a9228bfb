"""Compares what wva makes of recordings with what is true, as Markdown.

usage: report.py WVA DIRECTORY...

Each directory is one that measure.py wrote: LEVEL.rec.gz, and LEVEL.json with what is true.
"""

import json
import sys
from pathlib import Path
from statistics import fmean, median

from decide import Evaluation, Reader
from recording import INTERVAL

MOMENTS = (30, 60, 120, 180)  # seconds after the begin of the load
SETTLED = 60.0  # seconds after which forecasts are compared, and of which the last arrivals are

COLUMNS = [
    "engine",
    "load",
    "came/s",
    "wva saw",
    "claimed capacity ÷ measured saturation after 30 s",
    "1 min",
    "2 min",
    "3 min",
    "forecast ÷ came",
    "asks for",
    "p95 TTFT",
    "refused, left",
    "steps",
]

EXPLANATION = """
`came`: what clients sent. `wva saw`: its estimate of that in the last minute. `forecast ÷ came`: what wva forecast for the time at which
an ordered pod would serve, divided by the rate at that time, on average and (in brackets) where it was most wrong. `asks for`: replicas at
the end. `steps`: how much longer steps took than modelled, because the machine was busy."""


def offered(truth: dict, at: float) -> float | None:
    """The rate, requests/s, that the load has at a time. None beyond the end of a ramp."""
    low, high = truth["offered"]
    share = (at - truth["begin"]) / (truth["end"] - truth["begin"])
    if low == high:
        return low
    return low + (high - low) * share if 0 <= share <= 1 else None


def at_moment(evaluations: list[Evaluation], at: float) -> Evaluation | None:
    """The nearest evaluation, unless none is near."""
    nearest = min(evaluations, key=lambda evaluation: abs(evaluation.at - at))
    return nearest if abs(nearest.at - at) <= INTERVAL else None


def percent(value: float | None, true: float | None) -> str:
    return f"{100 * (value / true - 1):+.0f} %" if value is not None and true else "–"


def forecasts(evaluations: list[Evaluation], truth: dict) -> str:
    errors = []
    for evaluation in evaluations:
        if evaluation.forecast is not None and evaluation.at >= truth["begin"] + SETTLED:
            later = offered(truth, evaluation.at + (evaluation.horizon or 0))
            if later:
                errors.append(evaluation.forecast / later)
    return f"{percent(fmean(errors), 1)} ({percent(max(errors, key=lambda error: abs(error - 1)), 1)})" if errors else "–"


def row(truth: dict, evaluations: list[Evaluation]) -> str:
    begin, end = truth["begin"], truth["end"]
    came = len(truth["due"]) / (end - begin)
    saw = [e.arrivals for e in evaluations if e.arrivals is not None and end - SETTLED <= e.at]
    claims = [at_moment(evaluations, begin + seconds) for seconds in MOMENTS]
    ends = truth.get("ends", {})
    cells = [
        truth["family"],
        truth["level"] + (" %" if truth["level"].isdigit() else ""),
        f"{came:.2f}",
        percent(median(saw), came) if saw else "–",
        *(percent(claim.capacity if claim else None, truth["saturation"]) for claim in claims),
        forecasts(evaluations, truth),
        str(evaluations[-1].desired),
        f"{truth['ttft']['p95']:.1f} s" if truth.get("ttft") else "–",
        f"{ends.get('refused', 0)}, {ends.get('abandoned', 0)}",
        percent(truth.get("disturbed"), 1),
    ]
    return line(cells)


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def order(path: Path) -> tuple[float, str]:
    return (float(path.stem) if path.stem.isdigit() else 1e3, path.stem)


def report(wva: str, directories: list[Path]) -> None:
    reader = Reader(wva)
    print(line(COLUMNS), line(["---"] * len(COLUMNS)), sep="\n")
    starts = []
    for directory in directories:
        for path in sorted(directory.glob("*.json"), key=order):
            truth = json.loads(path.read_text())
            recorded = path.with_suffix(".rec.gz")
            evaluations = reader.evaluations(recorded, truth["sequences"], truth.get("started"), truth.get("ready"))
            if truth["level"] == "saturation":
                starts.append((truth, evaluations[-1]))
            else:
                print(row(truth, evaluations), flush=True)
    print(EXPLANATION)
    if starts:
        print("\n| engine | measured saturation, requests/s | claimed at its end | start-up, s | learned start-up | forecasts reach |")
        print(line(["---"] * 6))
    for truth, last in starts:
        claimed = percent(last.capacity, truth["saturation"])
        learned = "–" if last.start_up is None else f"{last.start_up:.0f}"
        start, horizon = truth["ready"] - truth["started"], "–" if last.horizon is None else f"{last.horizon:.0f} s"
        print(line([truth["family"], f"{truth['saturation']:.2f}", claimed, f"{start:.0f}", learned, horizon]))


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    report(sys.argv[1], [Path(argument) for argument in sys.argv[2:]])
