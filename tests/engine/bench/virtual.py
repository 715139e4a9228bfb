"""vLLM in this process, on a clock of its own: a step of the modelled accelerator moves the clock instead of sleeping. What other work the
machine does changes nothing, and no time is spent waiting. The HTTP server is left out; everything behind it is vLLM's own."""

import contextlib
import heapq
import itertools
import os
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import recording
from engine import arguments, environment, make_model
from shape import Requests, Result

START_UP = 60.0  # seconds on the clock for which the engine does not answer, as one that loads a model
LOOP = 1e-3  # seconds; a step that computes nothing takes so long


class Clock:
    """Seconds since the epoch, from when it is made. What is due at a time is called when the clock comes there."""

    def __init__(self):
        self.now, self.alarms, self.numbers = time.time(), [], itertools.count()

    def at(self, when: float, call) -> None:
        heapq.heappush(self.alarms, (when, next(self.numbers), call))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.alarms and self.alarms[0][0] <= end:
            self.now, _, call = heapq.heappop(self.alarms)
            call()
        self.now = end


class Virtual:
    """The engine of a family, with the same methods as engine.Server. There can be one in a process."""

    def __init__(self, family: dict, directory: Path):
        self.steps, self.results = directory / "steps.txt", {}
        os.environ.update(environment(family, self.steps) | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR"})
        # vLLM is imported with this environment, and its worker with this clock.
        from vllm import EngineArgs, SamplingParams
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.llm_engine import LLMEngine

        # Asynchronous scheduling would see what a step did only after the next one: here it has ended when it returns.
        options = arguments(family) | {"distributed_executor_backend": "uni", "async_scheduling": False, "disable_log_stats": False}
        self.engine = LLMEngine.from_engine_args(EngineArgs(model=str(make_model(family, directory)), **options))
        self.sampling = partial(SamplingParams, ignore_eos=True, temperature=0.0, detokenize=False, output_kind=RequestOutputKind.DELTA)
        self.clock = Clock()
        self.started, self.ready = self.clock.now, 0.0
        sys.modules["worker"].pause = self.clock.advance
        time.time = time.monotonic = self.now  # vLLM reads both

    def now(self) -> float:
        return self.clock.now

    def _page(self) -> str:
        from prometheus_client import generate_latest

        if not self.ready:
            raise OSError("connection refused")
        return generate_latest().decode()

    @contextlib.asynccontextmanager
    async def recorded(self, path: Path, names: set[str]):
        with recording.writing(path) as write:
            due = self.clock.now
            active = True

            def scrape() -> None:
                nonlocal due
                if active:
                    write(recording.scrape(self._page, self.clock.now, names))
                    due += recording.INTERVAL
                    self.clock.at(due, scrape)

            scrape()
            yield
            active = False

    async def wait(self) -> None:
        self.clock.advance(START_UP)
        self.ready = self.clock.now

    async def sleep(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def closed(self, requests: Requests, in_flight: int, seconds: float) -> list[Result]:
        """Keeps so many requests in flight. They begin spread over a fifth of the time, so that they do not end together."""
        begin, all_results = self.clock.now, []
        waiting = (begin + number / in_flight * seconds / 5 for number in range(in_flight))
        due = next(waiting, None)
        while self.clock.now < begin + seconds:
            while due is not None and due <= self.clock.now:
                all_results.append(self._send(requests, due))
                due = next(waiting, None)
            ended = self._step(begin + seconds if due is None else due)
            all_results += [self._send(requests, self.clock.now) for _ in range(ended)]
        return all_results

    async def open(self, requests: Requests, arrivals: Iterable[float], seconds: float) -> list[Result]:
        """Requests at the times that `arrivals` gives, in seconds from now. All are answered; the last ones after the time."""
        begin, all_results = self.clock.now, []
        arrivals = iter(arrivals)
        due = next(arrivals, None)
        while self.clock.now < begin + seconds:
            while due is not None and begin + due <= self.clock.now:
                all_results.append(self._send(requests, begin + due))
                due = next(arrivals, None)
            self._step(begin + min(seconds, seconds if due is None else due))
        return all_results

    async def idle(self) -> None:
        """Answers what is left, so that the next level begins with an empty engine."""
        while self.engine.has_unfinished_requests():
            self._step(self.clock.now + LOOP)

    def _send(self, requests: Requests, due: float) -> Result:
        prompt, output = requests.draw()
        result, name = Result(due), str(next(self.clock.numbers))
        self.results[name] = result
        self.engine.add_request(name, {"prompt_token_ids": prompt}, self.sampling(max_tokens=output), arrival_time=due)
        return result

    def _step(self, pause: float) -> int:
        """A step of the engine, or, when it has nothing to do, a pause until that time. Returns how many requests ended."""
        before, ended = self.clock.now, 0
        if not self.engine.has_unfinished_requests():
            self.clock.advance(max(0.0, pause - before))
            return 0
        for output in self.engine.step():
            result = self.results[output.request_id]
            result.first, result.last = result.first or self.clock.now, self.clock.now
            if output.finished:
                result.end, ended = "done", ended + 1
                del self.results[output.request_id]
        if self.clock.now == before:
            self.clock.advance(LOOP)
        return ended

    def check(self) -> None:
        """Nothing can have ended: an error in this process is raised where it happens."""

    def stop(self) -> None:
        """It ends with this process."""
