"""Clients of a server on this machine: so many requests in flight (closed loop), or requests at given times (open loop)."""

import asyncio
import time
from collections.abc import Iterable
from functools import partial

import aiohttp
from shape import Requests, Result

MODEL = "bench"
PATIENCE = "patience"


class Load:
    """Sends requests to the server at `url`. `patience`: seconds for which a client waits for the first token, None for ever."""

    def __init__(self, url: str, requests: Requests, patience: float | None):
        self.url, self.requests, self.patience = url, requests, patience
        self.results: list[Result] = []

    async def closed(self, in_flight: int, seconds: float) -> list[Result]:
        """Keeps so many requests in flight. They begin spread over a fifth of the time, so that they do not end together."""
        end = time.time() + seconds

        async def client(number: int) -> None:
            await asyncio.sleep(number / in_flight * seconds / 5)
            while time.time() < end:
                await self._send(session, time.time())

        async with self._session() as session:
            clients = [asyncio.create_task(client(number)) for number in range(in_flight)]
            await asyncio.sleep(seconds)
            await _cut(clients)
        return self.results

    async def open(self, arrivals: Iterable[float], seconds: float) -> list[Result]:
        """Requests at so many seconds from now. Those that run at the end are cut off."""
        begin = time.time()
        sent: set[asyncio.Task] = set()
        async with self._session() as session:
            for at in arrivals:
                await asyncio.sleep(max(0.0, begin + at - time.time()))
                task = asyncio.create_task(self._send(session, begin + at))
                sent.add(task)
                task.add_done_callback(sent.discard)
            await asyncio.sleep(max(0.0, begin + seconds - time.time()))
            await _cut(sent)
        return self.results

    async def _send(self, session: aiohttp.ClientSession, due: float) -> None:
        result = Result(due)
        self.results.append(result)
        leave = partial(_leave, asyncio.current_task(), result)
        limit = self.patience and asyncio.get_running_loop().call_later(self.patience, leave)
        prompt, output = self.requests.draw()
        body = {"model": MODEL, "prompt": prompt, "max_tokens": output, "ignore_eos": True, "stream": True, "temperature": 0.0}
        try:
            async with session.post(f"{self.url}/v1/completions", json=body) as response:
                if response.status != 200:
                    result.end = "refused" if response.status in (429, 503) else f"status {response.status}"
                    return
                async for line in response.content:
                    if line.startswith(b"data: {"):
                        result.last = time.time()
                        result.first = result.first or result.last
            result.end = "done"
        except asyncio.CancelledError as reason:
            if PATIENCE not in reason.args:
                raise
            result.end = "abandoned"
        except aiohttp.ClientError as error:
            result.end = repr(error)[:150]
        finally:
            if limit:
                limit.cancel()

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=900))


def _leave(task: asyncio.Task, result: Result) -> None:
    if result.first is None:
        task.cancel(PATIENCE)


async def _cut(tasks: Iterable[asyncio.Task]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
