"""vLLM in a separate process, which receives episodes as JSON lines and returns the time they took.

It runs by path in whichever environment has vLLM, so it imports nothing from Sleuth. The first line has the model
folder and vLLM's settings; the answer is vLLM's version, null if it is not installed. Each further line is a list of
episodes, each a list of turns [given ids, number of tokens to sample]; the answer has the seconds and the sampled
tokens.
"""

import gc
import json
import os
import sys
from importlib.util import find_spec
from time import perf_counter
from typing import Any

Episodes = list[list[tuple[list[int], int]]]


def main() -> None:
    # Libraries print to stdout, which is reserved for the answers: their output goes to stderr.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    order = json.loads(sys.stdin.readline())
    if find_spec("vllm") is None:
        print(json.dumps({"version": None}), file=answers)
        return
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    if find_spec("flashinfer") is None:
        os.environ["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
    import vllm

    engine = vllm.LLM(order["model"], **order["settings"])
    print(json.dumps({"version": vllm.__version__}), file=answers)
    for line in sys.stdin:
        print(json.dumps(play(engine, json.loads(line))), file=answers)


def play(engine: Any, episodes: Episodes) -> dict[str, float]:
    """Return the seconds from the first request to the last completion, and the number of sampled tokens."""
    run = _run_turns if any(len(episode) > 1 for episode in episodes) else _run_single_turns
    gc.collect()
    start = perf_counter()
    sampled = run(engine, episodes)
    return {"seconds": perf_counter() - start, "sampled": sampled}


def _run_single_turns(engine: Any, episodes: Episodes) -> int:
    prompts = [{"prompt_token_ids": given} for ((given, _),) in episodes]
    outputs = engine.generate(prompts, [_sampling(count) for ((_, count),) in episodes], use_tqdm=False)
    return sum(len(output.outputs[0].token_ids) for output in outputs)


def _run_turns(engine: Any, episodes: Episodes) -> int:
    """Run the loop of `LLM.generate`, submitting an episode's next turn as soon as the previous turn is done."""
    core, sampled = engine.llm_engine, 0
    left = [list(reversed(episode)) for episode in episodes]
    texts: list[list[int]] = [[] for _ in episodes]

    def submit(number: int) -> None:
        given, count = left[number].pop()
        texts[number] += given
        prompt = {"type": "token", "prompt_token_ids": list(texts[number])}
        core.add_request(f"{number}-{len(left[number])}", prompt, _sampling(count))

    for number in range(len(episodes)):
        submit(number)
    while core.has_unfinished_requests():
        for output in core.step():
            if not output.finished:
                continue
            number = int(output.request_id.partition("-")[0])
            new = output.outputs[0].token_ids
            texts[number] += new
            sampled += len(new)
            if left[number]:
                submit(number)
    return sampled


def _sampling(count: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=count,
        temperature=1.0,
        ignore_eos=True,
        logprobs=0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


if __name__ == "__main__":
    main()
