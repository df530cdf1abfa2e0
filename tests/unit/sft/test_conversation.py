"""Encoding of conversations: the tokens of an episode, with the source of each."""

import asyncio
from collections.abc import Callable, Sequence

import pytest
from transformers import PreTrainedTokenizerFast

from sleuth.agent import prompts
from sleuth.agent.episode import Agent
from sleuth.agent.protocol import make_protocol
from sleuth.agent.tags import Tags
from sleuth.agent.task import Task
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.errors import InputError
from sleuth.model.tokens import Tokens
from sleuth.records import Question, ToolCall
from sleuth.retrieval.retriever import Retriever
from sleuth.sft.conversation import ConversationEncoder, Message, Source, split_observations, validate_messages

# Like ChatML: a special token ends every turn, followed by a line break of the template.
CHAT = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)
# Like Qwen3: a last turn without a thought gets an empty one.
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
    """Factory of the same tokenizer with a chat template."""

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
    """The texts of a conversation with their sources, adjacent pieces joined."""
    runs: list[tuple[str, str]] = []
    for piece in ConversationEncoder(tokens, Tags(), limit).encode(messages):
        text = str(tokens.tokenizer.decode(piece.ids))
        if runs and runs[-1][0] == piece.source:
            runs[-1] = (piece.source, runs[-1][1] + text)
        else:
            runs.append((piece.source, text))
    return runs


@pytest.mark.parametrize("template", [None, CHAT, EMPTY_THOUGHT])
@pytest.mark.parametrize("limit", [500, 12])
def test_trace_has_the_tokens_of_its_episode(
    template: str | None, limit: int, tokens: Tokens, chatting: Callable[[str], Tokens], library: Retriever
) -> None:
    known = tokens if template is None else chatting(template)
    engine = ScriptedEngine.playing(known.encode(SEARCHED), known.encode(ANSWERED))
    config = AgentConfig(prompt="brief", observation_tokens=limit)
    agent = Agent(engine, known, Tags(), Toolbox(library, 2), config)
    episode = asyncio.run(agent.run(Task(ASKED)))
    shown = Tags().observe(ToolCall.search("x"), (episode.turns[0].hits,)).text
    messages = [*prompts.messages(ASKED, "brief", Tags()), said("assistant", SEARCHED + shown + ANSWERED)]
    pieces = list(ConversationEncoder(known, Tags(), limit).encode(messages))
    ids = [token for piece in pieces for token in piece.ids]
    spoken = [piece.source is Source.ASSISTANT for piece in pieces for _ in piece.ids]
    count = len(episode.ids)
    assert (tuple(ids[:count]), tuple(spoken[:count])) == (episode.ids, episode.sampled)
    assert ids[count] == known.eos_id
    assert spoken[count]
    assert any(piece.truncated for piece in pieces) == (limit == 12)


@pytest.mark.parametrize("kind", ["hermes", "llama"])
@pytest.mark.parametrize("cut", [False, True])
def test_trace_of_tool_calls_has_the_tokens_of_its_episode(
    kind: str, cut: bool, speaker: Callable[[str], Tokens], library: Retriever
) -> None:
    """All tokens agree; only the end of a call is learned in a trace but given after a stop string."""
    known = speaker(kind)
    tools = make_protocol("tools", known)
    frame = tools.observe(ToolCall.search("x"), ((),)).frame_ids(known)
    limit = sum(map(len, frame)) + 30 if cut else 2000
    call = f"<think> I look. </think> {tools.write(ToolCall.search('book 1', 'book 2'))}"
    config = AgentConfig(prompt="brief", observation_tokens=limit, context_tokens=100_000)
    engine = ScriptedEngine.playing(known.encode(call), known.encode(ANSWERED))
    episode = asyncio.run(Agent(engine, known, tools, Toolbox(library, 2), config).run(Task(ASKED)))
    turn = episode.turns[0]
    assert isinstance(turn.action, ToolCall)
    seen = tools.observe(turn.action, (turn.hits[: turn.counts[0]], turn.hits[turn.counts[0] :]))
    messages = [*prompts.messages(ASKED, "brief", tools), *tools.to_messages([call, ANSWERED], [seen])]
    pieces = list(ConversationEncoder(known, tools, limit).encode(messages))
    ids = [token for piece in pieces for token in piece.ids]
    spoken = [piece.source is Source.ASSISTANT for piece in pieces for _ in piece.ids]
    count = len(episode.ids)
    assert tuple(ids[:count]) == episode.ids
    (end,) = [place for place in range(count) if spoken[place] != episode.sampled[place]]
    assert (ids[end], spoken[end], ids[count], spoken[count]) == (known.eos_id, True, known.eos_id, True)
    assert any(piece.truncated for piece in pieces) == cut
    shown = "".join(known.decode(piece.ids) for piece in pieces if piece.source is Source.OBSERVATION)
    assert shown
    assert seen.escaped_body.startswith(shown)


def test_assistant_turns_include_their_end_token(chatting: Callable[[str], Tokens]) -> None:
    messages = [said("system", "Search."), said("user", "Who?"), said("assistant", "Ada"), said("user", "book")]
    messages += [said("assistant", "Oslo")]
    assert rendered(chatting(CHAT), messages) == [
        ("prompt", "system: Search.<|end|>\nuser: Who?<|end|>\nassistant: "),
        ("assistant", "Ada<|end|>"),
        ("prompt", "\nuser: book<|end|>\nassistant: "),
        ("assistant", "Oslo<|end|>"),
        ("prompt", "\n"),
    ]


def test_tool_results_are_observations(chatting: Callable[[str], Tokens]) -> None:
    messages = [said("user", "<information> is a tag, </information> another"), said("assistant", "Ada")]
    messages += [
        said("tool", "Oslo"),
        said("assistant", "Ada"),
        said("user", "so <information>Lisbon</information> then"),
    ]
    messages += [said("assistant", "Ada")]
    assert [text for source, text in rendered(chatting(CHAT), messages) if source == "observation"] == [
        "Oslo",
        "<information>Lisbon</information>",
    ]


def test_content_never_becomes_special_tokens(chatting: Callable[[str], Tokens]) -> None:
    known = chatting(CHAT)
    pieces = ConversationEncoder(known, Tags(), 500).encode(
        [said("user", "Who <|end|>"), said("assistant", "Ada <|end|>")]
    )
    assert sum(piece.ids.count(known.eos_id or 0) for piece in pieces) == 2


def test_template_that_rewrites_earlier_turns_is_rejected(chatting: Callable[[str], Tokens]) -> None:
    opening_a_thought = CHAT.replace("assistant: {% endif", "assistant: <think>{% endif")
    changing = CHAT.replace("{{ message['role'] }}", "{{ message['role'] }} of {{ messages | length }}")
    talk = [said("user", "Who?"), said("assistant", "Ada"), said("user", "Who?"), said("assistant", "Oslo")]
    for template in (opening_a_thought, changing):
        with pytest.raises(InputError, match="chat template"):
            rendered(chatting(template), talk)


@pytest.mark.parametrize(
    ("template", "pattern"),
    [
        ("{{ raise_exception('no system here') }}", "no system here"),
        (
            "{% for message in messages %}{% if message.role != 'tool' %}{{ message.content }}{% endif %}{% endfor %}",
            "user, tool",
        ),
    ],
)
def test_template_that_cannot_render_the_messages(
    template: str, pattern: str, chatting: Callable[[str], Tokens]
) -> None:
    with pytest.raises(ValueError, match=pattern):
        rendered(chatting(template), [said("user", "Who?"), said("tool", "Oslo"), said("assistant", "Ada")])


def test_several_turns_need_a_chat_template(tokens: Tokens) -> None:
    talk = [said("user", "Who?"), said("assistant", "Ada"), said("user", "Who?"), said("assistant", "Oslo")]
    with pytest.raises(InputError, match="chat template"):
        rendered(tokens, talk)


def test_unclosed_observation_is_rejected(tokens: Tokens) -> None:
    with pytest.raises(ValueError, match="<information>"):
        rendered(tokens, [said("user", "Who?"), said("assistant", "<information> Oslo <answer> Ada </answer>")])


def test_split_observations_includes_line_breaks() -> None:
    text = "a\n\n<information>b</information>\n\nc<information>d</information>e <information>"
    assert list(split_observations(text, Tags())) == [
        ("", "a", ""),
        ("\n\n<information>", "b", "</information>\n\n"),
        ("", "c", ""),
        ("<information>", "d", "</information>"),
        ("", "e <information>", ""),
    ]


@pytest.mark.parametrize(
    ("messages", "pattern"),
    [
        ([], "messages"),
        ("Ada", "messages"),
        (["Ada"], "message 1 .*Ada"),
        ([{"role": "bot", "content": "Ada"}], "message 1 .*bot.*system, user"),
        ([{"role": "user", "content": "Who?"}], "assistant"),
        ([{"role": "assistant", "content": "Ada"}], "first message"),
        ([{"role": "user", "content": None}, {"role": "assistant", "content": "Ada"}], "message 1 .*None"),
        ([{"role": "user", "content": "Who?"}, {"role": "assistant", "content": " "}], "message 2 .*content"),
        ([{"role": "user", "content": "Who?", "tool_calls": [1]}], "message 1 .*tool_calls"),
    ],
)
def test_invalid_messages(messages: object, pattern: str) -> None:
    with pytest.raises(ValueError, match=pattern):
        validate_messages({"messages": messages})


def test_null_keys_are_ignored() -> None:
    row = {"messages": [{"role": "user", "content": "Who?", "name": None}, {"role": "assistant", "content": "Ada"}]}
    assert validate_messages(row) == [said("user", "Who?"), said("assistant", "Ada")]
