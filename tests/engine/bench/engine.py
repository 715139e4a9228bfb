"""vLLM for a family of engines: what it is started with, and a server of it on this machine."""

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path

import recording
from load import MODEL, Load
from shape import Requests, Result

BLOCK = 32  # tokens; the engine takes multiples of 32 on a CPU
START_UP = 1800  # seconds; 30 s on an idle machine, 100 when `cpu` compiles for the first time, and very long on a busy one
HERE = Path(__file__).parent

OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_LOOPBACK_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def environment(family: dict, steps: Path) -> dict[str, str]:
    """What vLLM needs in its environment: no network, and for a modelled engine (bench/worker.py) its coefficients."""
    if "step" not in family:
        return OFFLINE | {"VLLM_CPU_OMP_THREADS_BIND": str((os.cpu_count() or 1) - 1)}
    return OFFLINE | {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": str(HERE),
        "ENGINE_STEP": json.dumps(family["step"]),
        "ENGINE_SLOWER": str(family.get("slower", 1)),
        "ENGINE_STEP_LOG": str(steps),
    }


def arguments(family: dict) -> dict:
    """The arguments of vLLM, by their names in Python."""
    modelled = {"worker_cls": "worker.ModelledWorker", "enforce_eager": True}  # there is nothing to compile
    return {
        "served_model_name": MODEL,
        "load_format": "dummy",
        "dtype": "bfloat16",
        "max_model_len": 4096,
        "max_num_batched_tokens": 2048,
        "max_num_seqs": family["sequences"],
        "block_size": BLOCK,
        "num_gpu_blocks_override": family["kvTokens"] // BLOCK,
        **(modelled if "step" in family else {}),
        **family.get("arguments", {}),
    }


def make_model(family: dict, directory: Path) -> Path:
    """Writes a model; returns its directory."""
    size = ["64", "1"] if "step" in family else ["512", "8"]
    subprocess.run([sys.executable, HERE / "model.py", directory / "model", *size, str(family.get("words", 2000))], check=True)
    return directory / "model"


class Server:
    """A vLLM server. Its log, and the times of its steps, are written to `directory`."""

    def __init__(self, family: dict, directory: Path):
        self.log, self.steps = directory / "engine.log", directory / "steps.txt"
        self.patience = family.get("patience")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [Path(sys.executable).with_name("vllm"), "serve", make_model(family, directory), "--host=127.0.0.1", f"--port={port}"]
        # Otherwise the work of the clients would be the limit, not the engine's.
        command += ["--stream-interval=16", "--disable-uvicorn-access-log"]
        for name, value in arguments(family).items():
            option = f"--{name.replace('_', '-')}"
            command += [option] if value is True else [option, json.dumps(value) if isinstance(value, dict) else str(value)]
        self.started, self.ready = time.time(), 0.0
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                command,
                env=os.environ | environment(family, self.steps),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _page(self, path: str = "/metrics", timeout: float = 5) -> str:
        """A page of the server. Raises OSError when it does not answer."""
        with urllib.request.urlopen(self.url + path, timeout=timeout) as response:
            return response.read().decode()

    async def wait(self) -> None:
        """Waits until the engine serves, and notes when."""
        while time.time() < self.started + START_UP:
            self.check()
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._page, "/health")
                self.ready = time.time()
                return
            await asyncio.sleep(0.5)
        raise SystemExit(f"the engine does not serve after {START_UP} s; see {self.log}")

    def check(self) -> None:
        """Raises when the server has ended."""
        if self.process.poll() is None:
            return
        lines = self.log.read_text().splitlines()
        reasons = [line for line in lines if re.search(r"\w(Error|Exception): ", line)][:3] or lines[-3:]
        raise SystemExit("\n".join([f"the engine ended; see {self.log}:", *reasons]))

    @contextlib.asynccontextmanager
    async def recorded(self, path: Path, names: set[str]):
        """Scrapes while the body runs."""

        async def scrape_all(write) -> None:
            due = time.time()
            while True:
                write(await asyncio.to_thread(recording.scrape, self._page, time.time(), names))
                due += recording.INTERVAL
                await asyncio.sleep(max(0.0, due - time.time()))

        with recording.writing(path) as write:
            task = asyncio.create_task(scrape_all(write))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self.check()

    async def closed(self, requests: Requests, in_flight: int, seconds: float) -> list[Result]:
        return await Load(self.url, requests, self.patience).closed(in_flight, seconds)

    async def open(self, requests: Requests, arrivals: Iterable[float], seconds: float) -> list[Result]:
        return await Load(self.url, requests, self.patience).open(arrivals, seconds)

    async def idle(self) -> None:
        """Waits until the requests that were cut off have left the engine."""
        for _ in range(60):
            await asyncio.sleep(1)
            page = await asyncio.to_thread(self._page, timeout=60)
            if not any(recording.series(page, {"vllm:num_requests_running", "vllm:num_requests_waiting"}).values()):
                return

    def stop(self) -> None:
        """Ends the server; its engine core and worker end with it."""
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(30)
            return
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
