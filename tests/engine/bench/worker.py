"""A worker of vLLM whose steps take the time of a modelled accelerator. It computes no model: tokens are random. Everything else is vLLM's
own: its scheduler, KV blocks, chunked prefill, prefix cache, preemption, and what it counts.

A step takes base + prompt_token × P + sequence × n + kv_token × held + experts × (1 − touched^tokens) seconds: P prompt tokens are computed
in it, n requests have a part in it, which hold so many tokens in the KV cache, and it computes so many tokens altogether. The last term is
that of a mixture of experts: each token reads the weights of the experts it is routed to, until all have been read.

ENGINE_STEP has these coefficients as JSON; one that is missing is 0. With `accepted`, a list, the first token drafted
ahead is accepted with the first probability, the next with the next, until one is not. (vLLM has such a mode, `synthetic`, but not where
it samples on a CPU.)

ENGINE_SLOWER multiplies all times: as a server, no core schedules and answers as many requests as a fast accelerator computes, and what
matters is the shape of the times.

ENGINE_STEP_LOG names the file that gets a line for each step: time, P, n, held, tokens, seconds wanted, seconds taken.
"""

import json
import os
import random
import time

import torch
from vllm.v1.sample import rejection_sampler
from vllm.v1.worker.cpu_worker import CPUWorker

STEP = json.loads(os.environ["ENGINE_STEP"])
SLOWER = float(os.environ["ENGINE_SLOWER"])

pause = time.sleep  # for so many seconds; an engine on a clock of its own (bench/virtual.py) moves that clock instead


def wanted(prompt: int, sequences: int, held: int, tokens: int) -> float:
    """Seconds that a step of the modelled accelerator takes."""
    linear = {"base": 1, "prompt_token": prompt, "sequence": sequences, "kv_token": held}
    experts = STEP.get("experts", 0.0) * (1 - STEP.get("touched", 0.0) ** tokens)
    return SLOWER * (sum(STEP.get(name, 0.0) * count for name, count in linear.items()) + experts)


def counts(step) -> tuple[int, int, int, int]:
    """Prompt tokens, requests, tokens held and all tokens of a step as the scheduler planned it."""
    scheduled, drafts = step.num_scheduled_tokens, step.scheduled_spec_decode_tokens
    computed = {request.req_id: request.num_computed_tokens for request in step.scheduled_new_reqs}
    cached = step.scheduled_cached_reqs
    computed.update(zip(cached.req_ids, cached.num_computed_tokens))
    # A request decodes with one token and its drafts; with more, it computes its prompt.
    own = {request: tokens - len(drafts.get(request, ())) for request, tokens in scheduled.items()}
    prompt = sum(tokens for tokens in own.values() if tokens > 1)
    held = sum(computed[request] + tokens for request, tokens in scheduled.items())
    return prompt, len(scheduled), held, step.total_num_scheduled_tokens


def accept(drafts, lengths, longest, _ends, _probabilities, logits, bonus, *_rest, **_options) -> torch.Tensor:
    """In place of vLLM's `rejection_sample`: for each request the drafts that are accepted and one more token, then placeholders."""
    output = torch.full((len(lengths), longest + 1), rejection_sampler.PLACEHOLDER_TOKEN_ID, dtype=torch.int32)
    own, begin = logits.argmax(dim=-1), 0
    for request, length in enumerate(lengths):
        chances = STEP["accepted"][:length]
        count = next((at for at, chance in enumerate(chances) if random.random() >= chance), length)
        output[request, :count] = drafts[begin : begin + count]
        output[request, count] = bonus[request, 0] if count == length else own[begin + count]
        begin += length
    return output


if "accepted" in STEP:
    rejection_sampler.rejection_sample = accept


def without_computing(model) -> None:
    """Lets a model answer at once, with random tokens."""
    size, words = model.config.hidden_size, model.config.vocab_size

    def forward(input_ids=None, inputs_embeds=None, **_inputs) -> torch.Tensor:
        count = len(inputs_embeds if input_ids is None else input_ids)
        return torch.zeros(count, size, dtype=torch.bfloat16)

    def compute_logits(hidden, *_rest) -> torch.Tensor:
        said = torch.randint(words, (len(hidden), 1))
        return torch.zeros(len(hidden), words).scatter_(1, said, 1.0)

    model.forward, model.compute_logits = forward, compute_logits


class ModelledWorker(CPUWorker):
    """Waits until the modelled accelerator would have finished a step.

    While requests go on, a step begins where the last one ended: what the host does in between is hidden behind the accelerator, as
    asynchronous scheduling does it.
    """

    running: frozenset[str] = frozenset()  # of the last step
    ended = 0.0
    log = None

    def load_model(self, *arguments, **options):
        super().load_model(*arguments, **options)
        without_computing(self.model_runner.model)

    def execute_model(self, scheduler_output):
        begin = self.ended if self.running - scheduler_output.finished_req_ids else time.monotonic()
        output = super().execute_model(scheduler_output)
        self.running = frozenset(scheduler_output.num_scheduled_tokens)
        if scheduler_output.total_num_scheduled_tokens > 0:
            counted = counts(scheduler_output)
            seconds = wanted(*counted)
            pause(max(0.0, begin + seconds - time.monotonic()))
            self.ended = time.monotonic()
            self.write(*counted, seconds, self.ended - begin)
        return output

    def write(self, *numbers) -> None:
        path = os.environ.get("ENGINE_STEP_LOG")
        if path and self.log is None:
            self.log = open(path, "a", buffering=1)
        if self.log:
            print(f"{time.time():.3f}", *(f"{number:.6g}" for number in numbers), file=self.log)
