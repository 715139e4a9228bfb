"""A recording of an engine: gzipped lines, one JSON object a scrape: `t` (seconds since the epoch) and either `s` (value by series, as
on the page) or `err` (why there was none)."""

import contextlib
import gzip
import json
import re
from pathlib import Path

INTERVAL = 5.0  # seconds between scrapes, as wva does it

# Beside what wva reads: what tells how right it reads, and what it might read one day.
OTHERS = """vllm:iteration_tokens_total_count vllm:iteration_tokens_total_sum vllm:num_preemptions_total vllm:prompt_tokens_by_source_total
vllm:request_success_total vllm:admission_rejections_total vllm:num_requests_waiting vllm:num_requests_waiting_by_reason
vllm:spec_decode_num_drafts_total vllm:spec_decode_num_accepted_tokens_total http_requests_total""".split()

SERIES = re.compile(r"^(\w[\w:]*)(\{.*\})? (\S+)$")


def series(page: str, names: set[str]) -> dict[str, float]:
    """The series of a page with one of `names`."""
    found = map(SERIES.match, page.splitlines())
    return {(m[1] + (m[2] or "")): float(m[3]) for m in found if m and m[1] in names}


def scrape(read, now: float, names: set[str]) -> dict:
    """The line of a recording for that time. `read` returns a page or raises OSError."""
    try:
        return {"t": round(now, 3), "s": series(read(), names | set(OTHERS))}
    except OSError as error:
        return {"t": round(now, 3), "err": str(error)}


@contextlib.contextmanager
def writing(path: Path):
    """Gives a function that writes lines. The file gets its name when it is complete."""
    part = path.with_suffix(".part")
    with gzip.open(part, "wt") as file:
        yield lambda line: print(json.dumps(line, separators=(",", ":")), file=file)
    part.rename(path)


def load(path: Path) -> list[dict]:
    """The scrapes of a recording."""
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def total(scrape: dict, name: str) -> float:
    """The sum of a counter's series, over all labels."""
    return sum(value for key, value in scrape["s"].items() if key.partition("{")[0] == name)
