"""sleuth doctor: check the environment, and the engine against the trainer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from sleuth.cli.terminal import echo, print_markdown
from sleuth.config import recipe
from sleuth.errors import EngineFailure

if TYPE_CHECKING:
    from sleuth.train.parity import Parity

CHECK_FAILED = 1

Dtype = Literal["float32", "bfloat16"]


def doctor(
    model: Annotated[str, Argument(metavar="[MODEL]", help="Model folder with tokenizer.")] = "quickstart",
    dtype: Annotated[Dtype | None, Option(help="Precision. Default: both on a GPU, float32 on a CPU.")] = None,
    device: Annotated[str, Option(help="Device of the check: auto, cpu, cuda, cuda:0.")] = "auto",
    tokens: Annotated[int, Option(min=1, max=256, help="Sampled tokens per turn; more is more precise.")] = 16,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Check the environment, and the engine's logprobs against the trainer's; exit code 1 if a check fails."""
    folder = recipe.resolve_policy(model)
    from sleuth.cli.terminal import silence_transformers
    from sleuth.doctor.engine_check import check, choose_device, choose_dtypes, failure_finding, finding
    from sleuth.doctor.environment import Finding, Verdict, findings, inspect_machine, json_text, markdown, worst

    silence_transformers()
    where = choose_device(device)
    dtypes = choose_dtypes(dtype, where)
    found = findings(inspect_machine(Path.cwd()))
    if not as_json:
        # Printed before the engine check, in which a broken driver may kill the process.
        print_markdown(markdown("Environment", found))
    checked: list[Finding] = []
    parities: list[Parity] = []
    for precision in dtypes:
        try:
            parities.append(check(folder, where, precision, tokens))
            checked.append(finding(parities[-1]))
        except EngineFailure as failure:
            checked.append(failure_finding(where, precision, failure))
    if as_json:
        echo(json_text([*found, *checked], parities), nl=False)
    else:
        print_markdown("\n" + markdown(f"Logprobs of engine and trainer: {model}", checked))
    if worst([*found, *checked]) is Verdict.BAD:
        raise typer.Exit(CHECK_FAILED)
