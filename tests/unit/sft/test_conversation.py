"""Conversations as tokens: those an episode would have, with the assistant's words told from everything else."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from transformers import PreTrainedTokenizerFast

from sleuth.agent import prompts
from sleuth.agent.episode import Agent, Task
from sleuth.agent.protocol import make_protocol
from sleuth.agent.tags import Tags
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import InputError
from sleuth.model.tokens import Tokens
from sleuth.records import Question, ToolCall
from sleuth.retrieval.retriever import Retriever
from sleuth.sft.conversation import Conversations, Message, Voice, checked, observed

# As ChatML: a special token ends every turn, and a line break behind it is the template's.
CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# As Qwen3: a turn without a thought gets an empty one, but only where it is the last.
EMPTY_THOUGHT = (
    "{% for message in messages %}{{ message['role'] }}: {% if loop.last and message['role'] == 'assistant' %}<think>"
    "</think>{% endif %}{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
ASKED = Question("q", "Who wrote book 1?", ("Ada",), "library")
SEARCHED = "<think> I need the author. </think><search> book 1 </search>"
ANSWERED = "<think> It is Ada. </think><answer> Ada </answer>"


@pytest.fixture
def chatting(tokens: Tokens) -> Callable[[str], Tokens]:
    """Makes the same tokenizer with a chat template."""

    def make(template: str) -> Tokens:
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=tokens.tokenizer.backend_tokenizer, eos_token="<|end|>", pad_token="<|pad|>"
        )
        tokenizer.chat_template = template
        return Tokens(tokenizer)

    return make


def said(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def rendered(tokens: Tokens, messages: Sequence[Message], limit: int = 500) -> list[tuple[str, str]]:
    """The texts of a conversation with their voices, neighbours of one voice joined."""
    runs: list[tuple[str, str]] = []
    for piece in Conversations(tokens, Tags(), limit).pieces(messages):
        text = str(tokens.tokenizer.decode(piece.ids))
        if runs and runs[-1][0] == piece.voice:
            runs[-1] = (piece.voice, runs[-1][1] + text)
        else:
            runs.append((piece.voice, text))
    return runs


@pytest.mark.parametrize("template", [None, CHAT, EMPTY_THOUGHT])
@pytest.mark.parametrize("limit", [500, 12])
def test_trace_has_the_tokens_of_the_episode_it_tells(
    template: str | None, limit: int, tokens: Tokens, chatting: Callable[[str], Tokens], library: Retriever
) -> None:
    known = tokens if template is None else chatting(template)
    engine = ScriptedEngine.playing(known.encode(SEARCHED), known.encode(ANSWERED))
    config = AgentConfig(prompt="brief", observation_tokens=limit)
    agent = Agent(engine, known, Tags(), Toolbox(library, 2), config)
    episode = asyncio.run(agent.run(Task(ASKED)))
    shown = Tags().observe(ToolCall.search("x"), [episode.turns[0].hits]).text
    messages = [*prompts.messages(ASKED, "brief", Tags()), said("assistant", SEARCHED + shown + ANSWERED)]
    pieces = list(Conversations(known, Tags(), limit).pieces(messages))
    ids = [token for piece in pieces for token in piece.ids]
    spoken = [piece.voice is Voice.SPOKEN for piece in pieces for _ in piece.ids]
    count = len(episode.ids)
    assert (tuple(ids[:count]), tuple(spoken[:count])) == (episode.ids, episode.sampled)
    assert ids[count] == known.eos_id
    assert spoken[count]
    assert any(piece.cut for piece in pieces) == (limit == 12)


@pytest.mark.parametrize("kind", ["hermes", "llama"])
@pytest.mark.parametrize("cut", [False, True])
def test_a_trace_of_calls_has_the_tokens_of_the_episode_it_tells(
    kind: str, cut: bool, speaker: Callable[[str], Tokens], library: Retriever
) -> None:
    """All of them; the end of a call is the model's to say in a trace, and given where a stop came first."""
    known = speaker(kind)
    tools = make_protocol("tools", known)
    frame = tools.observe(ToolCall.search("x"), [[]]).around(known)
    limit = sum(map(len, frame)) + 30 if cut else 2000
    call = f"<think> I look. </think> {tools.write(ToolCall.search('book 1', 'book 2'))}"
    config = AgentConfig(prompt="brief", observation_tokens=limit, context_tokens=100_000)
    engine = ScriptedEngine.playing(known.encode(call), known.encode(ANSWERED))
    episode = asyncio.run(Agent(engine, known, tools, Toolbox(library, 2), config).run(Task(ASKED)))
    turn = episode.turns[0]
    assert isinstance(turn.action, ToolCall)
    seen = tools.observe(turn.action, [turn.hits[: turn.counts[0]], turn.hits[turn.counts[0] :]])
    messages = [*prompts.messages(ASKED, "brief", tools), *tools.to_messages([call, ANSWERED], [seen])]
    pieces = list(Conversations(known, tools, limit).pieces(messages))
    ids = [token for piece in pieces for token in piece.ids]
    spoken = [piece.voice is Voice.SPOKEN for piece in pieces for _ in piece.ids]
    count = len(episode.ids)
    assert tuple(ids[:count]) == episode.ids
    (end,) = [place for place in range(count) if spoken[place] != episode.sampled[place]]
    assert (ids[end], spoken[end], ids[count], spoken[count]) == (known.eos_id, True, known.eos_id, True)
    assert any(piece.cut for piece in pieces) == cut
    shown = "".join(known.decode(piece.ids) for piece in pieces if piece.voice is Voice.SHOWN)
    assert shown
    assert seen.written.startswith(shown)


def test_every_assistant_turn_is_spoken_up_to_its_end(chatting: Callable[[str], Tokens]) -> None:
    messages = [said("system", "Search."), said("user", "Who?"), said("assistant", "Ada"), said("user", "book")]
    messages += [said("assistant", "Oslo")]
    assert rendered(chatting(CHAT), messages) == [
        ("given", "system: Search.<|end|>\nuser: Who?<|end|>\nassistant: "),
        ("spoken", "Ada<|end|>"),
        ("given", "\nuser: book<|end|>\nassistant: "),
        ("spoken", "Oslo<|end|>"),
        ("given", "\n"),
    ]


def test_what_tools_say_is_shown(chatting: Callable[[str], Tokens]) -> None:
    messages = [said("user", "<information> is a tag, </information> another"), said("assistant", "Ada")]
    messages += [
        said("tool", "Oslo"),
        said("assistant", "Ada"),
        said("user", "so <information>Lisbon</information> then"),
    ]
    messages += [said("assistant", "Ada")]
    assert [text for voice, text in rendered(chatting(CHAT), messages) if voice == "shown"] == [
        "Oslo",
        "<information>Lisbon</information>",
    ]


def test_words_never_become_special_tokens(chatting: Callable[[str], Tokens]) -> None:
    known = chatting(CHAT)
    pieces = Conversations(known, Tags(), 500).pieces([said("user", "Who <|end|>"), said("assistant", "Ada <|end|>")])
    assert sum(piece.ids.count(known.eos_id or 0) for piece in pieces) == 2


def test_earlier_turns_must_stay_as_they_were(chatting: Callable[[str], Tokens]) -> None:
    opening_a_thought = CHAT.replace("assistant: {% endif", "assistant: <think>{% endif")
    changing = CHAT.replace("{{ message['role'] }}", "{{ message['role'] }} of {{ messages | length }}")
    talk = [said("user", "Who?"), said("assistant", "Ada"), said("user", "Who?"), said("assistant", "Oslo")]
    for template in (opening_a_thought, changing):
        with pytest.raises(InputError, match="does not go on where it stopped"):
            rendered(chatting(template), talk)


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ raise_exception('no system here') }}", "refuses the messages"),
        (
            "{% for message in messages %}{% if message.role != 'tool' %}{{ message.content }}{% endif %}{% endfor %}",
            "write every",
        ),
    ],
)
def test_template_that_cannot_write_the_messages_is_told(
    template: str, sentence: str, chatting: Callable[[str], Tokens]
) -> None:
    with pytest.raises(ValueError, match=sentence):
        rendered(chatting(template), [said("user", "Who?"), said("tool", "Oslo"), said("assistant", "Ada")])


def test_several_turns_need_a_chat_template(tokens: Tokens) -> None:
    talk = [said("user", "Who?"), said("assistant", "Ada"), said("user", "Who?"), said("assistant", "Oslo")]
    with pytest.raises(InputError, match="no chat template"):
        rendered(tokens, talk)


def test_observation_that_is_not_closed_is_refused(tokens: Tokens) -> None:
    with pytest.raises(ValueError, match="does not close it"):
        rendered(tokens, [said("user", "Who?"), said("assistant", "<information> Oslo <answer> Ada </answer>")])


def test_observations_are_found_with_the_line_breaks_around_them() -> None:
    text = "a\n\n<information>b</information>\n\nc<information>d</information>e <information>"
    assert list(observed(text, Tags())) == [
        ("", "a", ""),
        ("\n\n<information>", "b", "</information>\n\n"),
        ("", "c", ""),
        ("<information>", "d", "</information>"),
        ("", "e <information>", ""),
    ]


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([], "must be a list"),
        ("Ada", "must be a list"),
        (["Ada"], "message 1 is no object"),
        ([{"role": "bot", "content": "Ada"}], "message 1 has the role 'bot'; expected one of system, user"),
        ([{"role": "user", "content": "Who?"}], "no message is the assistant's"),
        ([{"role": "assistant", "content": "Ada"}], "the assistant speaks first"),
        ([{"role": "user", "content": None}, {"role": "assistant", "content": "Ada"}], "message 1 needs a text"),
        ([{"role": "user", "content": "Who?"}, {"role": "assistant", "content": " "}], "message 2 needs a text"),
        ([{"role": "user", "content": "Who?", "tool_calls": [1]}], "message 1 holds 'tool_calls'"),
    ],
)
def test_bad_messages_are_told(messages: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        checked({"messages": messages})


def test_keys_without_a_value_are_no_keys() -> None:
    row = {"messages": [{"role": "user", "content": "Who?", "name": None}, {"role": "assistant", "content": "Ada"}]}
    assert checked(row) == [said("user", "Who?"), said("assistant", "Ada")]
