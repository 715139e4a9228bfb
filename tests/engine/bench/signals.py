"""Which series wva reads from vLLM: by its own word, `wva signals`."""

import re
import subprocess

ROW = re.compile(r"^\| `(\w+)` \| (.*?) \|(?: (.*?) \|)?$")
SERIES = re.compile(r"`([\w:]+)(\{[^`]*\})?`")


def table(wva: str) -> dict[str, list[tuple[str, str]]]:
    """For each signal the names that the program `wva` reads it by, the first that exists first: each a metric and the label that
    selects a series of it, such as `reason="capacity"`, or ``."""
    page = subprocess.run([wva, "signals"], check=True, capture_output=True, text=True).stdout
    section = page.partition("\n### vLLM\n")[2].partition("\n### ")[0]
    rows = filter(None, map(ROW.match, section.splitlines()))
    found = {row[1]: [(name, label.strip("{}")) for name, label in SERIES.findall(f"{row[2]} {row[3] or ''}")] for row in rows}
    if not found:
        raise SystemExit(f"`{wva} signals` has no table for vLLM: is it the program of this checkout?")
    return found


def names(wva: str) -> set[str]:
    """All metrics that the program reads."""
    return {name for alternatives in table(wva).values() for name, _ in alternatives}
