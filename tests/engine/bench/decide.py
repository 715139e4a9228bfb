"""What wva makes of a recording: `wva decide` scrape by scrape with the memory carried along, as an evaluation at each scrape would be."""

import datetime
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import recording
import signals

WINDOW = 120.0  # seconds of samples that an evaluation sees, as with `wva serve --source scrape`
GROUP, VARIANT = "bench/bench", "bench/replica"


@dataclass
class Evaluation:
    """What an evaluation said. Rates in requests/s; None: unknown to it."""

    at: float
    desired: int | None
    reason: str
    capacity: float | None
    arrivals: float | None
    forecast: float | None
    horizon: float | None  # seconds for which it forecasts
    start_up: float | None  # seconds, as learned


def time_text(at: float) -> str:
    return datetime.datetime.fromtimestamp(at, datetime.timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Reader:
    """Reads recordings with the program `wva`."""

    def __init__(self, wva: str):
        self.wva = wva
        self.table = signals.table(wva)

    def sample(self, series: dict[str, float]) -> dict[str, float]:
        """The value of each signal in a scrape. Series that an engine splits by labels are summed."""
        found = {}
        for signal, alternatives in self.table.items():
            for name, label in alternatives:
                matching = {key: value for key, value in series.items() if key.partition("{")[0] == name and label in key}
                if matching:
                    found[signal] = sum(matching.values()) if signal != "kvCapacity" else cache_tokens(next(iter(matching)))
                    break
        if "asleep" in found:  # the engine says whether it is awake
            found["asleep"] = 0.0 if found["asleep"] > 0 else 1.0
        return found

    def evaluations(self, path: Path, sequences: int, started: float | None = None, ready: float | None = None) -> list[Evaluation]:
        """Every evaluation of a recording, of an engine with so many sequences at most. `started` and `ready`: when the process began and
        when it served, by default two minutes before the recording."""
        scrapes = recording.load(path)
        first = scrapes[0]["t"]
        started, ready = started or first - 180, ready or first - 120
        samples, memory, evaluations = [], None, []
        for scrape in scrapes:
            at = scrape["t"]
            if "s" in scrape:
                samples.append((at, self.sample(scrape["s"])))
            recent = [sample for sample in samples if at - sample[0] <= WINDOW]
            snapshot = self.snapshot(at + 0.2, recent, sequences, started, ready if ready <= at else None)
            outcome = self.decide({"snapshot": snapshot} | ({"memory": memory} if memory else {}))
            memory = outcome["memory"]
            evaluations.append(evaluation(at, outcome))
        return evaluations

    def snapshot(self, now: float, samples, sequences: int, started: float, ready: float | None) -> dict:
        engine: dict = {}
        for at, values in samples:
            for signal, value in values.items():
                engine.setdefault(signal, []).append({"at": time_text(at), "value": value})
        pod = {"pod": "a", "created": time_text(started), "phase": "ready" if ready else "starting"}
        pod |= {"ready_since": time_text(ready), "engines": {"0": engine}} if ready else {}
        parameters = {
            "engine": "vllm",
            "memory_fraction": 0.9,
            "block_size": 16,
            "kv_cache_dtype": "auto",
            "tensor_parallel_size": 1,
            "blocks_override": 0,
            "tokens_override": 0,
            "max_batched_tokens": 2048,
            "max_sequences": sequences,
            "has_max_sequences": True,
            "max_length": 0,
            "eager": False,
            "v1": True,
            "chunked_prefill": True,
            "batched_tokens": 2048,
        }
        variant = {
            "id": VARIANT,
            "model": "bench",
            "target": {"kind": "Deployment", "name": "replica"},
            "cost": 10.0,
            "bounds": {"min": 1, "max": 8},
            "accelerator": "modelled",
            "role": "both",
        }
        state = {
            "variant": variant,
            "scale": {"spec": 1, "current": 1, "ready": 1 if ready else 0},
            "replicas": [pod],
            "template": {"gpus": 1, "engine": parameters},
        }
        return {"now": time_text(now), "groups": {GROUP: {"source": {"state": "complete"}, "variants": [state]}}}

    def decide(self, question: dict) -> dict:
        command = [self.wva, "decide", "-", "--output", "json"]
        answer = subprocess.run(command, input=json.dumps(question), capture_output=True, text=True)
        if answer.returncode:
            raise SystemExit(f"{' '.join(command)} failed; does it belong to this checkout?\n{answer.stderr}")
        return json.loads(answer.stdout)


def cache_tokens(key: str) -> float:
    """Tokens of the KV cache by the labels of `vllm:cache_config_info`, as docs/signals.md says."""
    labels = dict(label.split("=", 1) for label in key.partition("{")[2].rstrip("}").replace('"', "").split(",") if "=" in label)
    size = labels.get("kv_cache_size_tokens", "None")
    return float(size) if size.isdigit() and int(size) else float(labels["num_gpu_blocks"]) * float(labels["block_size"])


def evaluation(at: float, outcome: dict) -> Evaluation:
    """The numbers of interest in an outcome of `wva decide`."""
    steps = outcome["report"]["groups"][GROUP]["steps"]
    values = {value["name"]: value["value"] for step in steps for value in step.get("values", [])}

    def value(beginning: str) -> float | None:
        return next((number for name, number in values.items() if name.startswith(beginning)), None)

    target = outcome["decisions"][VARIANT]["verdict"].get("target", {})
    remembered = outcome["memory"]["groups"][GROUP].get("variants", {}).get("replica", {})
    starts = remembered.get("starts", {}).get("last", [])
    return Evaluation(
        at=at,
        desired=target.get("desired"),
        reason=target.get("reason", "none"),
        capacity=value("capacity of a replica of"),
        arrivals=value("arrivals,"),
        forecast=value("demand at the horizon,"),
        horizon=value("horizon,"),
        start_up=max(starts, default=None),
    )
