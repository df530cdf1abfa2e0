"""The protocol of function calls through the model's own chat template, as Qwen, Hermes and Llama 3 were trained."""

import re
from collections.abc import Sequence

from sleuth.agent import calls
from sleuth.agent.forms import FORMS, Form, Kind
from sleuth.agent.frame import REMEDY, attempted, frame
from sleuth.agent.observation import Observation
from sleuth.agent.quiet import quieter
from sleuth.agent.template import GAP, Function, written
from sleuth.errors import ConfigError
from sleuth.model.tokens import Tokens
from sleuth.records import Access, Action, Answer, Hit, Malformed, Search

PROBE = Search("Oslo")
BETWEEN = "\n---\n"
TOLD = {"search": "call the function search with one query or several", "access": "read a page with access"}
LOUD = ("think", "answer", "tool_call", "tool_response", "tools")  # tags that no document may write


class Tools:
    """Calls are JSON, observations are turns of the tool, and an answer stands in <answer> tags of a turn without one.

    Generation stops after the first call of a turn. The chat template of the tokens says which form calls have.
    """

    marks = None

    def __init__(self, tokens: Tokens, names: Sequence[str] = ("search",)) -> None:
        """A tokenizer whose chat template has no tools is a ConfigError."""
        self._names = tuple(names)
        self.functions: tuple[Function, ...] = tuple(calls.FUNCTIONS[name] for name in names)
        self._form = _form(tokens, self.functions)
        self.stops = self._form.stops
        self._shown = frame("tool", tokens, self.functions)
        self._told = frame("user", tokens, self.functions)
        self._tag = re.compile(rf"</?(?:{'|'.join(('think', 'answer', *self._form.words))})>")
        self._quiet = quieter(LOUD, tokens)
        self.instruction = instruction(names)

    def parse(self, text: str) -> Action:
        said = self._form.said(text)
        match said.kind:
            case Kind.CALL:
                return calls.read(said.content, self._names)
            case Kind.ANSWER:
                return Answer(said.content.strip())
            case Kind.NEITHER:
                return Malformed(said.content)

    def act(self, action: Search | Access | Answer) -> str:
        if isinstance(action, Answer):
            return f"<answer> {action.text} </answer>"
        return self._form.written(calls.written(action, self._form.arguments))

    def formed(self, text: str, action: Action) -> bool:
        """One action with nothing after it, and before it at most one thought between its tags."""
        said = self._form.said(text)
        inside = said.content if said.kind is Kind.ANSWER else ""
        alone = not said.after.strip() and not self._tag.search(inside)
        thoughts = self._tag.findall(said.before)
        return not isinstance(action, Malformed) and alone and thoughts in ([], ["<think>", "</think>"])

    def observe(self, action: Search | Access, found: Sequence[Sequence[Hit]]) -> Observation:
        match action:
            case Search((_,)):
                parts = [self._listed(hits) for hits in found]
            case Search(queries):
                parts = [f"For {query}:\n{self._listed(hits)}" for query, hits in zip(queries, found, strict=True)]
            case Access(urls):
                parts = [_page(url, pages) for url, pages in zip(urls, found, strict=True)]
        return self._shown.around(self._quiet(BETWEEN.join(parts)))

    def correct(self, action: Malformed) -> Observation:
        return self._told.around(
            f"No action was taken: {action.reason}. Call a function like this: {self._form.example}\n"
            "or answer like this: <answer> answer </answer>"
        )

    def told(self, said: Sequence[str], shown: Sequence[Observation]) -> list[dict[str, str]]:
        messages: list[dict[str, str]] = []
        for text, seen in zip(said, [*shown, None], strict=True):
            messages.append({"role": "assistant", "content": text})
            if seen is not None:
                messages.append({"role": "tool", "content": seen.body})
        return messages

    def _listed(self, hits: Sequence[Hit]) -> str:
        documents = [
            f"Doc {number} (Title: {hit.passage.title})\n{hit.passage.text.strip()}"
            for number, hit in enumerate(hits, 1)
        ]
        return "\n".join(documents) or "Nothing was found."


def instruction(names: Sequence[str]) -> str:
    """What a model that calls these functions is told."""
    does = " or ".join(TOLD[name] for name in names)
    return (
        "Work out the answer to the question step by step. You may put your reasoning between <think> and </think> "
        f"before you act. Whenever you lack a fact, {does}; one call a turn. When you know the answer, give it "
        "alone and short between <answer> and </answer>, for example <answer> Lisbon </answer>."
    )


def _page(url: str, pages: Sequence[Hit]) -> str:
    return f"Page {url}:\n{pages[0].passage.contents.strip()}" if pages else f"There is no page {url}."


def _form(tokens: Tokens, functions: Sequence[Function]) -> Form:
    """The form of calls that the chat template writes; a template without tools is a ConfigError."""
    if tokens.tokenizer.chat_template is None:
        raise ConfigError(f"agent.protocol = tools takes a chat template, and the model has none; {REMEDY}")
    asked = {"role": "user", "content": GAP}
    if attempted([asked], tokens, functions) == attempted([asked], tokens, ()):
        raise ConfigError(f"agent.protocol = tools is not for this model, whose chat template ignores tools; {REMEDY}")
    said = _probe(asked, tokens, functions).rpartition(GAP)[2]
    for form in FORMS:
        heard = form.said(said)
        if heard.kind is Kind.CALL and calls.read(heard.content, ("search",)) == PROBE:
            return _readable(form, tokens)
    raise ConfigError(f"the chat template writes function calls in a form that is not known here; {REMEDY}")


def _probe(asked: dict[str, str], tokens: Tokens, functions: Sequence[Function]) -> str:
    """What the template makes of a call."""
    call = {"name": "search", "arguments": {"query_list": list(PROBE.queries)}}
    calling = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": call}]}
    try:
        return written([asked, calling], tokens, functions, opening=False)
    except Exception as error:  # a template is a program of others, and may raise anything
        raise ConfigError(f"the chat template refuses a function call ({error}); {REMEDY}") from error


def _readable(form: Form, tokens: Tokens) -> Form:
    """The form, if its tags can be seen in what a model samples: special tokens are left out of every text."""
    for tag in (f"<{slash}{word}>" for word in form.words[:1] for slash in ("", "/")):
        if tokens.decode(tokens.encode_trusted(tag)).strip() != tag:
            raise ConfigError(f"the tokenizer takes {tag} for a special token, which is not read as text; {REMEDY}")
    return form
