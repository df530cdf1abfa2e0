"""sleuth start: from a folder of documents to a trained agent."""

import re
import shlex
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from sleuth.cli import options
from sleuth.cli.terminal import silence_transformers, stderr_console
from sleuth.errors import ConfigError, InputError, Interrupted


def start(
    documents: Annotated[
        Path, Argument(metavar="DOCS", help="Folder of documents: text, Markdown, HTML, PDF, docx and others.")
    ],
    model: Annotated[str, Option(help="Model to train: a folder, a hub name, or quickstart for a trial.")],
    out: Annotated[
        Path | None, Option(help="Output folder; run again to continue an interrupted run.", show_default="agents/NAME")
    ] = None,
    teacher: Annotated[
        str | None, Option(metavar="URL|FOLDER", help="Language model that writes the questions. Default: rules.")
    ] = None,
    teacher_model: Annotated[str | None, Option(metavar="NAME", help="Name of the teacher on its server.")] = None,
    key_env: options.KeyEnv = None,
    questions: Annotated[int, Option(min=1, max=options.MAX_INT, help="Maximum number of questions.")] = 2000,
    unanswerable: Annotated[float, Option(min=0.0, max=0.5, help="Fraction of unanswerable questions.")] = 0.1,
    steps: Annotated[
        int | None, Option(min=1, max=options.MAX_ITEMS, help="Training steps. Default: 80, CPU: 20.")
    ] = None,
    seed: Annotated[int, Option(min=0, max=options.MAX_SEED, help="Random seed.")] = 0,
    until: Annotated[
        str | None,
        Option(metavar="STAGE", help="Stop after this stage, such as questions, for example to review them."),
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the stages and their commands, then exit.")] = False,
) -> None:
    """Index documents, make questions, train a model to search them, compare it with RAG, and write a report.

    Stages whose output already exists are skipped. Run the same command again to continue an interrupted run.
    """
    from sleuth.corpus.sources import require_source
    from sleuth.engines.remote import is_address

    if not documents.exists():
        raise InputError(f"{documents} does not exist; expected a folder of documents")
    for option, value in {"--teacher-model": teacher_model, "--key-env": key_env}.items():
        if value is not None and not (teacher is not None and is_address(teacher)):
            raise ConfigError(
                f"{option} {value} has no effect without the address of a server as --teacher; remove it, or add an "
                "address such as http://host:8000/v1"
            )

    require_source(documents)
    silence_transformers()
    from sleuth.pipeline.runner import find_stage
    from sleuth.runs.json_files import read_json
    from sleuth.start.forecast import forecast
    from sleuth.start.report import verdict
    from sleuth.start.runner import make_pipeline, require_output_folder
    from sleuth.start.runner import start as run_stages
    from sleuth.start.sizes import choose_sizes
    from sleuth.start.stages import DOCUMENTS, QUESTIONS, StartOptions, plan_stages
    from sleuth.synthesis.teacher.teacher import TeacherSource

    name = re.sub(r"[^\w.-]+", "-", documents.resolve().name).strip("-.") or "documents"
    folder = (out or Path("agents") / name).absolute()
    policy = model if not Path(model).is_dir() else str(Path(model).absolute())
    chosen = StartOptions(
        str(documents.absolute()), policy, teacher, teacher_model, key_env, questions, unanswerable, steps, seed
    )
    require_output_folder(chosen, folder)
    sizes = choose_sizes(policy, steps)
    stages = plan_stages(chosen, folder, sizes)
    if until is not None:
        find_stage(stages, until)
    console = stderr_console()
    for line in forecast(chosen, sizes):
        console.print(line, soft_wrap=True)
    if dry_run:
        for line in make_pipeline(chosen, folder, sizes).describe():
            console.print(line, soft_wrap=True)
        return
    if teacher is not None and any(teacher in stage.words and not stage.is_done for stage in stages):
        TeacherSource(teacher, options.parse_endpoint(teacher, teacher_model, key_env, None)).check()
    try:
        run_stages(chosen, folder, sizes, lambda line: console.print(line, soft_wrap=True), until)
    except Interrupted:
        console.print("interrupted; run the same command again to continue", soft_wrap=True)
        raise
    if until is not None:
        review = ("sleuth", "data", "review", str(folder / QUESTIONS), "--index", str(folder / DOCUMENTS))
        console.print(f"stopped after {until!r}; run the same command without --until to continue", soft_wrap=True)
        if (folder / QUESTIONS).exists():
            console.print(f"review       {shlex.join(review)}", soft_wrap=True)
        return
    summary = read_json(folder / "summary.json")
    console.print(verdict(summary), soft_wrap=True)
    console.print(f"report       {folder / 'report.html'}", soft_wrap=True)
    console.print(f"ask          {summary['ask']}", soft_wrap=True)
    console.print(f"serve        {summary['serve']}", soft_wrap=True)
