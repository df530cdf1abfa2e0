"""sleuth doctor: check the environment, and the engine against the trainer."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from sleuth.cli.terminal import echo, print_markdown
from sleuth.config import recipe

if TYPE_CHECKING:
    import torch

    from sleuth.doctor.environment import Finding
    from sleuth.train.parity import Parity

CHECK_FAILED = 1


def doctor(
    model: Annotated[
        str, typer.Argument(metavar="[MODEL]", help="A Hugging Face model folder with tokenizer.")
    ] = "quickstart",
    dtype: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(help="Precision of the check. Default: both on a GPU, float32 on a CPU."),
    ] = None,
    device: Annotated[str, typer.Option(help="Device of the check: auto, cpu, cuda, cuda:0.")] = "auto",
    tokens: Annotated[
        int, typer.Option(min=1, max=256, help="Sampled tokens per turn; more give a more precise check.")
    ] = 16,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Check the environment, and the engine's logprobs against the trainer's; exit code 1 if a check fails."""
    folder = recipe.resolve_policy(model)
    from sleuth.cli.terminal import silence_transformers
    from sleuth.doctor.engine_check import choose_device, choose_dtypes
    from sleuth.doctor.environment import Verdict, findings, inspect_machine, json_text, markdown, worst

    silence_transformers()
    where = choose_device(device)
    dtypes = choose_dtypes(dtype, where)
    found = findings(inspect_machine(Path.cwd()))
    if not as_json:
        # Before the engine check, where a broken driver may kill the process.
        print_markdown(markdown("Environment", found))
    checked, parities = _checked(folder, where, dtypes, tokens)
    if as_json:
        echo(json_text([*found, *checked], parities), nl=False)
    else:
        print_markdown("\n" + markdown(f"Logprobs of engine and trainer: {model}", checked))
    if worst([*found, *checked]) is Verdict.BAD:
        raise typer.Exit(CHECK_FAILED)


def _checked(
    folder: Path, device: "torch.device", dtypes: "list[torch.dtype]", tokens: int
) -> "tuple[list[Finding], list[Parity]]":
    """Check the engine in each precision; a failure becomes a row of the table."""
    from sleuth.doctor.engine_check import check, failure_finding, finding
    from sleuth.errors import EngineFailure

    rows, parities = [], []
    for dtype in dtypes:
        try:
            parities.append(check(folder, device, dtype, tokens))
            rows.append(finding(parities[-1]))
        except EngineFailure as failure:
            rows.append(failure_finding(device, dtype, failure))
    return rows, parities
