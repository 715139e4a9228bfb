"""Measures a family of engines: its saturation with a closed loop, then its levels of load, each with a recording.

usage: measure.py FAMILY DIRECTORY WVA SECONDS SLOWER [LEVEL...]

DIRECTORY gets LEVEL.rec.gz, what a scrape of the engine showed, and LEVEL.json, what is true. A level that is there is not measured again;
one is measured up to three times while other work disturbs it. SLOWER multiplies the modelled times. A level is a percentage of the
saturation; `saturation` is the closed loop, and `ramp` goes from 25 to 110 % in twice SECONDS.
"""

import asyncio
import json
import os
import signal
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from statistics import fmean, quantiles

import recording
import signals
from engine import Server
from shape import Requests, Result, Shape
from virtual import Virtual

CLOSED = 120.0  # seconds of the closed loop, of which the first third fills the engine
WORKERS = 1.5  # requests in flight in the closed loop, by the sequences that can run
RAMP = (25.0, 110.0)  # percent
TRIES = 3  # of a level, while the machine disturbs it
DISTURBED = 1.1  # steps took so many times as long as modelled


def say(text: str) -> None:
    print(f"engine: {datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)


class Family:
    """One run of a family."""

    def __init__(self, name: str, directory: Path, wva: str, seconds: float, slower: float):
        known = json.loads(Path(__file__).with_name("families.json").read_text())
        if name not in known:
            raise SystemExit(f"no family {name!r}: must be one of {', '.join(known)}")
        self.name, self.spec, self.directory, self.seconds = name, known[name], directory, seconds
        self.spec["slower"] = self.spec.get("slower", 1) * (slower if "served" in self.spec else 1)
        self.names = signals.names(wva)
        self.shape = Shape(**{"words": self.spec.get("words", 2000) - 20} | self.spec["load"])

    def levels(self) -> list[str]:
        return ["saturation", *self.spec["levels"]]

    def path(self, level: str, ending: str = "json") -> Path:
        return self.directory / f"{level}.{ending}"

    async def measure(self, levels: list[str]) -> None:
        missing = [level for level in levels if not self.path(level).exists()]
        if not missing:
            return say(f"{self.name}: all levels are there already")
        say(f"{self.name}: starting the engine ({self.spec['about']})")
        self.engine = (Server if "served" in self.spec else Virtual)(self.spec, self.directory)
        try:
            if "saturation" in missing:
                await self.saturation()
            else:
                await self.engine.wait()
            for level in missing:
                if level != "saturation":
                    await self.undisturbed(level)
        finally:
            self.engine.stop()

    async def saturation(self) -> None:
        """Recorded from the start of the process, so that it also shows how long a start takes."""
        path = self.path("saturation", "rec.gz")
        # Of more different lengths than elsewhere, with the same mean: otherwise the requests end together, in waves.
        requests = Requests(replace(self.shape, spread=0.5), seed=0)
        async with self.engine.recorded(path, self.names):
            await self.engine.wait()
            say(f"{self.name}: ready; closed loop for {CLOSED:.0f} s")
            begin = self.engine.now()
            results = await self.engine.closed(requests, round(self.in_flight()), CLOSED)
        scrapes = [scrape for scrape in recording.load(path) if "s" in scrape]
        full = [scrape for scrape in scrapes if begin + CLOSED / 3 <= scrape["t"] <= begin + CLOSED]
        (first, last), tokens = (full[0]["t"], full[-1]["t"]), growth(full, "vllm:generation_tokens_total")
        # It is busy all the time, so that the modelled time of its steps is what an idle machine would have taken.
        _, modelled = self.steps(first, last)
        self.write("saturation", results, begin, saturation=tokens / self.shape.output / (modelled or last - first))
        await self.engine.idle()

    def in_flight(self) -> float:
        """Enough to keep the engine full: of its sequences, or of those that its KV cache holds."""
        tokens = self.shape.prompt - self.shape.shared + self.shape.output / 2
        return WORKERS * min(self.spec["sequences"], self.spec["kvTokens"] / tokens)

    async def undisturbed(self, level: str) -> None:
        """Measures a level again while other work on the machine slows the engine down. The last try counts."""
        for _ in range(TRIES):
            await self.level(level)
            disturbed = json.loads(self.path(level).read_text())["disturbed"] or 1.0
            if disturbed <= DISTURBED:
                return
            say(f"{self.name}: {level}: steps took {disturbed:.2f} times as long as modelled: other work needs the processors")

    async def level(self, level: str) -> None:
        saturation = json.loads(self.path("saturation").read_text())["saturation"]
        seconds = self.seconds * (2 if level == "ramp" else 1)
        low, high = RAMP if level == "ramp" else (float(level), float(level))
        low, high = low * saturation / 100, high * saturation / 100
        say(f"{self.name}: {level}, {low:.2f} to {high:.2f} requests/s for {seconds:.0f} s")
        requests = Requests(self.shape, seed=self.levels().index(level))
        arrivals = requests.arrivals(lambda at: low + (high - low) * at / seconds, high, seconds)
        async with self.engine.recorded(self.path(level, "rec.gz"), self.names):
            await self.engine.sleep(recording.INTERVAL)
            begin = self.engine.now()
            # All times first: the lengths of requests are drawn from the same source when they are sent.
            results = await self.engine.open(requests, list(arrivals), seconds)
        self.write(level, results, begin, offered=[low, high], saturation=saturation)
        await self.engine.idle()

    def write(self, level: str, results: list[Result], begin: float, **more) -> None:
        """What the client knows. Written last: a level without it is measured again."""
        ends = [result.end for result in results]
        first = [result.first - result.due for result in results if result.first]
        end = self.engine.now()
        taken, wanted = self.steps(begin, end)
        truth = {
            "family": self.name,
            "level": level,
            "started": self.engine.started,
            "ready": self.engine.ready,
            "begin": begin,
            "end": end,
            "sequences": self.spec["sequences"],
            "tokens": [self.shape.prompt, self.shape.output],
            "machineLoad": os.getloadavg()[1],
            "ends": {name: ends.count(name) for name in sorted(set(ends))},
            "ttft": percentiles(first),
            "slower": self.spec["slower"],
            "disturbed": taken / wanted if wanted else None,
            **more,
            "due": [round(result.due, 2) for result in results],
        }
        part = self.path(level, "part")
        part.write_text(json.dumps(truth))
        part.rename(self.path(level))
        say(f"{self.name}: {level}: " + ", ".join(f"{count} {name}" for name, count in truth["ends"].items()))

    def steps(self, begin: float, end: float) -> tuple[float, float]:
        """Seconds that the modelled steps of that time took, and that they would have taken on an idle machine."""
        if not self.engine.steps.exists():
            return 0.0, 0.0
        steps = (line.split() for line in self.engine.steps.read_text().splitlines())
        times = [(float(step[-1]), float(step[-2])) for step in steps if begin <= float(step[0]) <= end]
        return sum(taken for taken, _ in times), sum(wanted for _, wanted in times)


def growth(scrapes: list[dict], name: str) -> float:
    """How much a counter grew from the first to the last scrape."""
    return recording.total(scrapes[-1], name) - recording.total(scrapes[0], name)


def percentiles(values: list[float]) -> dict[str, float] | None:
    if len(values) < 2:
        return None
    cuts = quantiles(values, n=100)
    return {"mean": fmean(values), "p50": cuts[49], "p95": cuts[94], "p99": cuts[98]}


if __name__ == "__main__":
    if len(sys.argv) < 6:
        sys.exit(__doc__)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the engine is stopped
    directory = Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    family = Family(sys.argv[1], directory, sys.argv[3], float(sys.argv[4]), float(sys.argv[5]))
    asyncio.run(family.measure(sys.argv[6:] or family.levels()))
