"""HTML report of a training run: results before and after, guard events, curves, timing, transcripts and settings."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from sleuth.page.charts import COLOURS, Marker, Rule, Series, bar_chart, drawable, line_chart, smoothed
from sleuth.page.document import (
    ABSENT,
    Html,
    Section,
    cards,
    document,
    duration,
    element,
    flatten,
    folded,
    interval,
    pairs,
    read_estimate,
    short,
    table,
)
from sleuth.page.transcript import transcript
from sleuth.records import Estimate

Tree = Mapping[str, Any]
Rows = Sequence[Tree]

ALL = "all"
_INTERVALS = (
    "Brackets hold 95% intervals over the questions: Wilson intervals for exact match, bootstrap intervals for other "
    "means. Gains are paired by question and bold where the interval excludes zero."
)
_CEILING = "Expert ceiling"
_ACTIONS = {"warn": "warned", "skip": "step skipped", "rollback": "rolled back", "stop": "run stopped"}
_SEVERE = ("rollback", "stop")
_STEP_PARTS = {
    "generate": "generating episodes",
    "search": "of which waiting for searches",
    "reward": "rewards",
    "score": "old, reference and critic forward passes",
    "pack": "packing",
    "train": "forward and backward",
    "optimiser": "optimiser",
    "publish": "publishing weights to the engine",
    "write": "writing trajectories",
    "save": "copying a checkpoint",
    "step": "whole step",
}
_SPEEDS = {
    "speed/tokens": "tokens per second",
    "speed/trajectories": "trajectories per second",
    "speed/mfu": "model FLOP utilisation, forward and backward (6N per token)",
    "search/latency": "seconds per search",
    "engine/reused": "share of prompt tokens found in the cache",
    "staleness/mean": "versions that sampled tokens are behind",
    "buffer/size": "finished groups that wait for a later step",
}
_WAITING = (  # in asynchronous training: the seconds of waiting, their label, and what they are a share of
    ("time/waiting_for_rollouts", "share of a step in which the trainer waits for rollouts", ("time/step",)),
    (
        "time/rollouts_waiting",
        "share of the time in which rollouts wait for the trainer",
        ("time/rollouts_waiting", "time/episodes"),  # since the previous step, so it includes evaluations
    ),
)
_WORKER_STATES = {"busy": "busy", "waiting_search": "search", "waiting_weights": "weights", "idle": "idle"}
_WORKER_TOTALS = {
    "cluster/asked": "episodes asked",
    "cluster/finished": "episodes finished",
    "cluster/retried": "episodes retried",
    "cluster/lost": "episodes lost with their worker",
    "cluster/workers_lost": "workers lost",
    "cluster/workers_restarted": "workers restarted",
    "weights/seconds": "seconds of sending weights",
    "weights/bytes": "bytes of weights sent",
}
_TRENDS = (
    ("Reward", "reward/mean"),
    ("Searches per question", "episode/searches"),
    ("Tokens per response", "episode/tokens"),
    ("Policy entropy", "policy/entropy"),
    ("Gradient norm", "policy/gradient_norm"),
    ("Logprob of right answers", "policy/likelihood_right"),
    ("Episodes without an answer", "episode/answerless"),
    ("Malformed episodes", "episode/malformed"),
    ("Abstentions on unanswerable questions", "episode/abstained_unanswerable"),
)
_ATTEMPTS = "gateway/attempts"
_OUTSIDE = {  # counts over the attempts of a step
    "gateway/calls": "calls of the policy",
    "gateway/segments": "segments",
    "gateway/forks": "forks",
    "gateway/rewritten": "messages rewritten by the client",
    "gateway/helper_calls": "calls of the helper model",
    "gateway/failures": "failed attempts",
}
_NEGATIVE = ("policy/likelihood_right",)
_SMOOTH_FROM = 12  # minimum number of steps to draw a running mean


def run_page(
    *,
    title: str,
    manifest: Tree,
    metrics: Rows,
    summary: Tree,
    transcripts: Rows,
    events: Rows = (),
    parity: Tree | None = None,
) -> Html:
    """Build the report page; values missing from the summary are shown as absent."""
    ceiling = read_estimate((summary.get("ceiling") or {}).get("em"))
    ends = ((0, summary.get("em_before")), (summary.get("steps") or 0, summary.get("em_after")))
    held_out = {float(step): known for step, written in ends if (known := read_estimate(written)) is not None}
    made = [(name, value) for name, value in flatten(manifest) if not name.startswith("config.")]
    found = changes(summary)
    notes = [element("p", note, class_="note") for note in (*loss_notes(summary), _INTERVALS)]
    if what := (summary.get("ceiling") or {}).get("what"):
        notes.insert(-1, element("p", f"{_CEILING}: ", what, class_="note"))
    return document(
        title,
        _headline(summary),
        Section("Before and after, by kind of question", change_table(found), *notes, change_charts(found)),
        Section("Guard events", *guard_events(events, parity)),
        Section("Training curves", curves(metrics, held_out, ceiling, guard_markers(events))),
        *([Section("Outside agent", *outside_agent(metrics))] if _keys(metrics, "gateway/") else []),
        Section("Timing and memory", *timing(metrics)),
        *([Section("Rollout workers", *rollout_workers(metrics))] if _keys(metrics, "cluster/") else []),
        Section("Transcripts", *map(transcript, transcripts)),
        Section("Settings", folded("All settings of the run", pairs(list(flatten(manifest.get("config") or {}))))),
        Section(
            "How this was made",
            element("p", "Made by Sleuth from the manifest, metrics, summary and trajectories in the run folder."),
            pairs(made),
        ),
        kind="Sleuth · training run",
    )


def _headline(summary: Tree) -> Html:
    asked = (summary.get("held_out") or {}).get("questions")
    figures = []
    for sampling, prefix in (("greedy", "em"), ("sampled", "em_sampled")):
        before, after = (read_estimate(summary.get(f"{prefix}_{when}")) for when in ("before", "after"))
        if sampling == "greedy" or before or after:
            values, spans = zip(*(interval(each).partition(" ")[::2] for each in (before, after)), strict=True)
            note = f"{sampling}, {question_count(before, after, asked)} held-out questions"
            figures.append(("Exact match", " → ".join(values), " → ".join(span or ABSENT for span in spans), note))
    return cards(
        [
            *figures,
            ("Time", duration(summary.get("seconds")), f"{short(summary.get('steps'))} steps"),
            ("Peak memory", f"{short(summary.get('peak_memory_gib'))} GiB"),
            ("Tokens", short(summary.get("tokens"))),
        ]
    )


@dataclass(frozen=True, slots=True)
class Change:
    """Results for one kind of question before and after training; None means unknown."""

    kind: str
    before: Estimate | None
    after: Estimate | None
    gain: Estimate | None
    ceiling: Estimate | None
    searches_before: Estimate | None
    searches_after: Estimate | None
    asked: int | None = None


def changes(summary: Tree) -> list[Change]:
    ceiling = summary.get("ceiling") or {}
    ceilings, searches = ceiling.get("by_hops") or {}, summary.get("searches_by_hops") or {}
    kinds = summary.get("em_by_hops") or {}
    found = [_change(kind, entry, ceilings.get(kind), searches.get(kind) or {}) for kind, entry in kinds.items()]
    overall = {when: summary.get(f"em_{when}") for when in ("before", "after", "gain")}
    overall["questions"] = (summary.get("held_out") or {}).get("questions")
    return [*found, _change(ALL, overall, ceiling.get("em"), searches.get(ALL) or {})]


def _change(kind: str, match: Tree, ceiling: Any, searches: Tree) -> Change:
    before, after, gain = (read_estimate(match.get(name)) for name in ("before", "after", "gain"))
    first, last = (read_estimate(searches.get(name)) for name in ("before", "after"))
    return Change(kind, before, after, gain, read_estimate(ceiling), first, last, match.get("questions"))


def question_count(before: Estimate | None, after: Estimate | None, asked: int | None, arrow: str = "→") -> str:
    """Format the number of usable questions in two evaluations, such as `99 → 98 of 100` if some were lost."""
    counts = [each.count for each in (before, after) if each is not None]
    if len(set(counts)) == 1 and asked in (None, counts[0]):
        return short(counts[0])
    return f" {arrow} ".join(map(short, counts)) + (f" of {short(asked)}" if counts and asked is not None else "")


def loss_notes(summary: Tree) -> list[str]:
    held_out = summary.get("held_out") or {}
    lost, asked = held_out.get("lost") or {}, held_out.get("questions")
    notes = []
    if lost:
        parts = []
        for when, counts in lost.items():
            reasons = ", ".join(f"{reason.replace('_', ' ')} {count}" for reason, count in counts.items())
            parts.append(f"{when.replace('_', ' ')}, {sum(counts.values())} of {asked} ({reasons})")
        notes.append(f"Failed questions, excluded from all figures: {'; '.join(parts)}.")
    gain = read_estimate(summary.get("em_gain"))
    if gain is not None and asked is not None and gain.count < asked:
        notes.append(f"The gain is over the {short(gain.count)} questions that were usable both times.")
    if kinds := held_out.get("kinds_without_pairs"):
        notes.append(f"Kinds without a question that was usable both times: {', '.join(kinds)}.")
    return notes


def change_table(found: Sequence[Change]) -> Html:
    """Build a table with one row per kind and intervals, and a column for the ceiling if known."""
    has_ceiling = any(change.ceiling for change in found)
    rows = []
    for change in found:
        gain = interval(change.gain, sign=True)
        significant = change.gain is not None and not change.gain.low <= 0 <= change.gain.high
        searches = (change.searches_before, change.searches_after)
        rows.append(
            [
                change.kind,
                question_count(change.before, change.after, change.asked) or ABSENT,
                interval(change.before),
                interval(change.after),
                element("strong", gain, class_="good" if change.gain and change.gain.low > 0 else "bad")
                if significant
                else element("span", gain),
                *([interval(change.ceiling)] if has_ceiling else []),
                *(short(None if each is None else round(each.value, 2)) for each in searches),
            ]
        )
    header = ["Kind", "Questions", "EM before", "EM after", "Gain", *([_CEILING] if has_ceiling else [])]
    return table([*header, "Searches before", "Searches after"], rows)


def change_charts(found: Sequence[Change]) -> Html:
    has_ceiling = any(change.ceiling for change in found)
    names = ["before", "after", *([_CEILING.lower()] if has_ceiling else [])]
    matches = [(each.kind, [each.before, each.after, each.ceiling][: len(names)]) for each in found]
    charts = [bar_chart("Exact match", names, matches, high=1.0)]
    searched = [each for each in found if each.searches_before or each.searches_after]
    if searched:
        groups = [(each.kind, [each.searches_before, each.searches_after]) for each in searched]
        charts.append(bar_chart("Searches per question", names[:2], groups))
    return element("div", *charts, class_="charts")


def guard_events(events: Rows, parity: Tree | None) -> Iterator[Html]:
    """Yield a table of guard events, with consecutive repeats merged, and a note on engine-trainer parity."""
    if events:
        rows: list[list[object]] = []
        for run in _merge_repeated(events):
            event, steps = run[-1], list(dict.fromkeys(short(each.get("step")) for each in (run[0], run[-1])))
            action = str(event.get("action", ABSENT))
            label = element("span", _ACTIONS.get(action, action), class_="bad" if action in _SEVERE else None)
            figures = (short(event.get(name)) for name in ("value", "limit"))
            rows.append(["–".join(steps), _guard_name(event), label, *figures, event.get("sentence", ABSENT)])
        yield table(("Step", "Guard", "Action", "Value", "Limit", "Message"), rows)
    else:
        yield element("p", "No guard was triggered.")
    if parity:
        mean, maximum, k3, tokens = (short(parity.get(name)) for name in ("mean", "maximum", "k3", "tokens"))
        where = "".join(f", {parity[name]}" for name in ("dtype", "device") if parity.get(name))
        yield element(
            "p",
            f"Logprob difference of engine and trainer, last compared at step {short(parity.get('step'))}: "
            f"mean {mean}, maximum {maximum} (k3 {k3}, {tokens} tokens{where}).",
            class_="note",
        )


def guard_markers(events: Rows) -> list[Marker]:
    by_step: dict[float, list[str]] = {}
    for first, *_ in _merge_repeated(events):
        if drawable(first.get("step")):
            by_step.setdefault(first["step"], []).append(_guard_name(first))
    return [Marker(", ".join(dict.fromkeys(names)), step) for step, names in by_step.items()]


def _merge_repeated(events: Rows) -> list[list[Tree]]:
    found: list[list[Tree]] = []
    latest: dict[tuple[Any, Any], list[Tree]] = {}
    for event in events:
        key, step = (event.get("guard"), event.get("action")), event.get("step")
        last = latest[key][-1].get("step") if key in latest else None
        if isinstance(step, int) and isinstance(last, int) and step == last + 1:
            latest[key].append(event)
        else:
            latest[key] = [event]
            found.append(latest[key])
    return found


def _guard_name(event: Tree) -> str:
    return str(event.get("guard", ABSENT)).replace("_", " ")


def timing(rows: Rows) -> Iterator[Html]:
    def known(key: str) -> list[float]:
        return [row[key] for row in rows if drawable(row.get(key))]

    def rounded(value: float) -> str:
        return short(float(f"{value:.3g}"))

    seconds = {name: fmean(values) for name in _STEP_PARTS if (values := known(f"time/{name}"))}
    if not seconds:
        yield element("p", "No times were recorded.", class_="quiet")
        return
    step = seconds.get("step")
    parts = [
        [_STEP_PARTS[name], rounded(mean), f"{mean / step:.0%}" if step else ABSENT] for name, mean in seconds.items()
    ]
    figures = [(label, rounded(fmean(values))) for key, label in _SPEEDS.items() if (values := known(key))]
    if known("buffer/size"):
        for key, label, whole in _WAITING:
            if total := sum(sum(known(each)) for each in whole):
                figures.append((label, f"{sum(known(key)) / total:.0%}"))
    memory = dict.fromkeys(key for row in rows for key in row if key.startswith("memory/"))
    figures += [
        (f"peak memory in GiB, {key.removeprefix('memory/').removesuffix('_gib')}", rounded(max(values)))
        for key in memory
        if (values := known(key))
    ]
    yield element("div", table(("Part", "Seconds per step", "Share"), parts), pairs(figures), class_="charts")


def curves(
    rows: Rows, held_out: Mapping[float, Estimate], ceiling: Estimate | None, markers: Sequence[Marker] = ()
) -> Html:
    """Draw all charts of a run; `held_out` adds the evaluations before and after training, by step."""
    charts = [exact_match(rows, held_out, ceiling, markers)]
    charts += [
        line_chart(title, trend(rows, key), markers=markers, low=None if key in _NEGATIVE else 0)
        for title, key in _TRENDS
        if any(key in row for row in rows)
    ]
    charts += [
        _by_kind(rows, "em", "Held-out exact match by kind", 1.0),
        _by_kind(rows, "searches", "Held-out searches by kind"),
        _step_time(rows),
    ]
    return element("div", *charts, class_="charts")


def outside_agent(rows: Rows) -> Iterator[Html]:
    """Yield the totals of an outside agent's attempts, and curves per attempt of those counts that are not all zero."""
    totals = {key: sum(value for value in _column(rows, key)[1] if value) for key in (_ATTEMPTS, *_OUTSIDE)}
    yield pairs([("attempts", short(totals[_ATTEMPTS])), *((_OUTSIDE[key], short(totals[key])) for key in _OUTSIDE)])
    charts = []
    for key, label in _OUTSIDE.items():
        if totals[key]:
            means = [
                {"step": row["step"], key: row[key] / row[_ATTEMPTS]}
                for row in rows
                if key in row and row.get(_ATTEMPTS)
            ]
            charts.append(line_chart(f"{label.capitalize()} per attempt", trend(means, key), low=0))
    charts += [
        line_chart(
            key.removeprefix("segment/").replace("_", " ").replace("/", " ").capitalize(), trend(rows, key), low=0
        )
        for key in _keys(rows, "segment/")
    ]
    yield element("div", *charts, class_="charts")


def rollout_workers(rows: Rows) -> Iterator[Html]:
    """Yield totals of the workers of a cluster, and their time by state as shares of each step."""
    totals = {key: sum(value for value in _column(rows, key)[1] if value) for key in _WORKER_TOTALS}
    series = [
        Series(label, *_column(rows, f"cluster/{state}"), colour=colour)
        for colour, (state, label) in enumerate(_WORKER_STATES.items())
    ]
    chart = line_chart("Time of the workers by state, shares of a step", series, low=0.0, high=1.0)
    counts = pairs([(label, short(totals[key])) for key, label in _WORKER_TOTALS.items()])
    yield element("div", chart, counts, class_="charts")


def exact_match(
    rows: Rows, held_out: Mapping[float, Estimate], ceiling: Estimate | None, markers: Sequence[Marker] = ()
) -> Html:
    key = "evaluate/em"
    recorded = {
        row["step"]: Estimate(row[key], row.get(f"{key}_low", row[key]), row.get(f"{key}_high", row[key]), 0)
        for row in rows
        if drawable(row.get(key))
    }
    evaluations = dict(sorted((recorded | dict(held_out)).items()))
    series = trend(rows, "episode/em", "training, sampled")
    if evaluations:
        found = evaluations.values()
        low, high = [each.low for each in found], [each.high for each in found]
        name = "held out, greedy (95% band)"
        series.append(Series(name, list(evaluations), [each.value for each in found], low, high, colour=1))
    rules = [Rule("expert ceiling", ceiling.value, colour=2)] if ceiling else []
    return line_chart("Exact match", series, rules=rules, markers=markers, low=0.0, high=1.0)


def trend(rows: Rows, key: str, name: str = "each step", colour: int = 0) -> list[Series]:
    """Return the values of a metric as a series; a longer run gets a running mean over faint values."""
    x, y = _column(rows, key)
    if len(x) < _SMOOTH_FROM:
        return [Series(name, x, y, colour=colour)]
    window = max(3, len(x) // 12)
    mean = Series(f"mean of {window} steps", x, smoothed(y, window), colour=colour)
    return [Series(name, x, y, faint=True, colour=colour), mean]


def _by_kind(rows: Rows, part: str, title: str, high: float | None = None) -> Html:
    """Draw held-out curves by kind of question; empty until a curve has two points."""
    prefix = f"evaluate/{part}_"
    keys = [key for key in _keys(rows, prefix) if key.removeprefix(prefix) not in ("low", "high")]
    kinds = {key.removeprefix(prefix): _column(rows, key) for key in keys}
    if not any(len(x) > 1 for x, _ in kinds.values()):
        return Html("")
    series = [
        Series(kind.replace("_", " "), x, y, colour=colour) for colour, (kind, (x, y)) in enumerate(kinds.items())
    ]
    return line_chart(title, series[:COLOURS], low=0.0, high=high)


def _step_time(rows: Rows) -> Html:
    columns = {key: _column(rows, key) for key in _keys(rows, "time/")}

    def mean(key: str) -> float:
        known = [value for value in columns[key][1] if value is not None]
        return sum(known) / len(known) if known else 0.0

    largest = sorted(columns, key=lambda key: -mean(key))[:COLOURS]
    series = [
        Series(key.removeprefix("time/").replace("_", " "), *columns[key], colour=colour)
        for colour, key in enumerate(largest)
    ]
    return line_chart("Seconds per step", series, low=0.0)


def _column(rows: Rows, key: str) -> tuple[list[float], list[float | None]]:
    known = [(row["step"], row[key]) for row in rows if key in row]
    return [step for step, _ in known], [value if drawable(value) else None for _, value in known]


def _keys(rows: Rows, prefix: str) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row if key.startswith(prefix)))
