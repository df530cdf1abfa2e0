"""sleuth worker: run an agent for the gateway of a training run."""

import os
import sys
from typing import Annotated

from typer import Option

from sleuth.cli import options
from sleuth.credentials import token_from_env
from sleuth.gateway.endpoint import TOKEN_ENV


def worker(
    gateway: Annotated[str, Option(metavar="URL", help="Address of the gateway, as printed by the training run.")],
    agent: Annotated[str, Option(metavar="import:package.function", help="The agent: run(task, llm).")],
    concurrency: Annotated[int, Option(min=1, max=options.MAX_ITEMS, help="Attempts at once.")] = 16,
    processes: Annotated[bool, Option("--processes", help="Run each attempt in a process of its own.")] = False,
    token_env: Annotated[
        str, Option(metavar="NAME", help="Environment variable that holds the gateway's token.")
    ] = TOKEN_ENV,
    grace: Annotated[
        float,
        Option(
            min=0.0, callback=options.require_finite, help="Seconds that running attempts get to finish after SIGTERM."
        ),
    ] = 30.0,
) -> None:
    """Pull tasks from the gateway of a training run with agent.run = "worker", run the agent, and return rewards.

    The worker reconnects when the gateway is restarted. Where only httpx and the agent's framework are installed,
    use python -m sleuth.gateway.worker, which has the same options.
    """
    from sleuth.gateway.worker import WorkerOptions, run_worker, start_logging

    start_logging()
    run_worker(WorkerOptions(gateway, agent, token_from_env(token_env) or "", concurrency, processes, grace))
    sys.stderr.flush()
    os._exit(0)  # threads of agents that never return do not keep the worker alive
