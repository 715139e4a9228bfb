"""What requests look like, when they come, and what became of them."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass
class Shape:
    """Lengths in tokens."""

    prompt: int
    output: int
    spread: float = 0.1  # lengths are uniform within ± this share
    shared: int = 0  # tokens that each prompt has in common with others, out of `prompt`
    prefixes: int = 1  # of how many such beginnings each prompt has one
    words: int = 30_000  # different tokens in prompts


@dataclass
class Result:
    """What became of a request. Times in seconds since the epoch."""

    due: float
    first: float | None = None
    last: float | None = None
    end: str = "cut"  # still running when the level ended; else done, refused, abandoned, or the error


class Requests:
    """Random requests. The same seed gives the same ones, and the shared beginnings are the same for all seeds."""

    def __init__(self, shape: Shape, seed: int):
        self.shape, self.random = shape, random.Random(seed)
        fixed = random.Random(1)
        self.beginnings = [[self._token(fixed) for _ in range(shape.shared)] for _ in range(shape.prefixes)]

    def draw(self) -> tuple[list[int], int]:
        """The tokens of a prompt, and how many are to be generated."""
        prompt = list(self.random.choice(self.beginnings))
        prompt += [self._token(self.random) for _ in range(self._length(self.shape.prompt - len(prompt)))]
        return prompt, self._length(self.shape.output)

    def arrivals(self, rate: Callable[[float], float], highest: float, seconds: float) -> Iterator[float]:
        """Random times (Poisson), in seconds after the begin, with a rate (requests/s, at most `highest`) that depends on the time."""
        at = 0.0
        while (at := at + self.random.expovariate(highest)) < seconds:
            if self.random.random() * highest <= rate(at):
                yield at

    def _token(self, source: random.Random) -> int:
        return source.randrange(10, 10 + self.shape.words)

    def _length(self, mean: float) -> int:
        return max(1, round(mean * self.random.uniform(1 - self.shape.spread, 1 + self.shape.spread)))
