"""One trajectory whole: its turns as a conversation, and its tokens with all that was recorded of them."""

from tokenizers import Tokenizer

from sleuth.http.responses import HttpProblem
from sleuth.runs.trajectory import InvalidRow
from sleuth.view.archive import FOLDER, Archive, At
from sleuth.view.brief import brief
from sleuth.view.conversation import prompt
from sleuth.view.conversation import turns as turns_of
from sleuth.view.line import Tree, read
from sleuth.view.tokens import spans_of
from sleuth.view.tokens import tokens as tokens_of

LEARNED = ".learned"  # before the suffix of the file that holds what a step made of its trajectories

MISSING = {
    "text": "the folder holds no tokenizer that can be read; give the folder of one with --tokenizer",
    "logprob": "logprobs are not recorded: the model was behind an address that gives words alone",
    "version": "the versions of the weights that sampled the tokens are not recorded",
    "ratio": "no ratio is recorded: no update of the weights saw this trajectory, or its run did not keep ratios",
    "advantage": "no advantage is recorded: nothing was learned from this trajectory, or its run did not keep them",
    "documents": "texts of documents are not recorded here; what the model was shown of them follows its search",
}


def whole(archive: Archive, at: At, tokenizer: Tokenizer | None, tokens: bool = True) -> Tree:
    """A trajectory with everything that is known of it; `missing` says what is not, each in a sentence."""
    row = archive.row(at)
    learned = _learned(archive, at)
    spans = spans_of(row)
    per_token = tokens_of(row, learned, spans, tokenizer)
    shown = {name: each for name, each in MISSING.items() if per_token.get(name, 0) is None}
    turns = turns_of(row, spans, tokenizer)
    if any(hit["text"] is None for turn in turns for hit in turn["hits"]):
        shown["documents"] = MISSING["documents"]
    return {
        **brief(at, row),
        "tokens_all": len(row.get("ids") or ()),
        "advantage": learned["advantage"] if isinstance(learned.get("advantage"), float | int) else None,
        "score": row.get("score"),
        "seconds": row.get("seconds"),
        "prompt": prompt(row, tokenizer),
        "turns": turns,
        "tokens": per_token if tokens else None,
        "missing": shown,
    }


def neighbours(archive: Archive, at: At) -> Tree:
    """The trajectories before and after in the files."""
    leaves = archive.leaves()
    steps = [leaf.step for leaf in leaves]
    place = steps.index(at.step)
    last = len(archive.starts(leaves[place])) - 1
    before, after = at.row - 1, at.row + 1
    earlier = At(at.step, before) if before >= 0 else _edge(archive, place - 1, last=True)
    later = At(at.step, after) if after <= last else _edge(archive, place + 1, last=False)
    return {"previous": str(earlier) if earlier else None, "next": str(later) if later else None}


def _edge(archive: Archive, place: int, *, last: bool) -> At | None:
    leaves = archive.leaves()
    if not 0 <= place < len(leaves):
        return None
    rows = len(archive.starts(leaves[place]))
    return At(leaves[place].step, rows - 1 if last else 0) if rows else None


def _learned(archive: Archive, at: At) -> Tree:
    """What the step made of the trajectory; empty where it made nothing, or kept nothing."""
    if archive.kind != "run":
        return {}
    line = archive.beside(archive.leaf(at.step), LEARNED, at.row)
    if not line:
        return {}
    try:
        found = read(line)
    except InvalidRow as error:
        name = f"{FOLDER}/step-{at.step}{LEARNED}.jsonl"
        raise HttpProblem(503, f"what was learned of {at} cannot be read ({error}); remove {name}") from error
    return found if isinstance(found, dict) else {}
