"""Messages: the last one is the question, earlier ones are shown to models that can be, and refused elsewhere."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from sleuth.agent import methods, prompts
from sleuth.agent.episode import Agent
from sleuth.agent.tags import Tags
from sleuth.agent.tools import Toolbox
from sleuth.config.agent import AgentConfig
from sleuth.engines.scripted import ScriptedEngine
from sleuth.gateway.api import ApiError
from sleuth.gateway.chat_completions import ChatMessage
from sleuth.model.tokens import Tokens
from sleuth.retrieval.retriever import NullRetriever
from sleuth.serve.agent.request import count_prompt_tokens, extract_question

FIRST = ChatMessage(role="user", content="Who wrote Emma?")
SECOND = ChatMessage(role="assistant", content="Jane Austen")
LAST = ChatMessage(role="user", content="And where was she born?")


def agent_of(tokens: Tokens, **knobs: Any) -> Agent:
    config = AgentConfig.model_validate({"prompt": "brief", **knobs})
    return Agent(
        ScriptedEngine.playing(), tokens, Tags(), Toolbox(NullRetriever(), 1), config, methods.make_method(config)
    )


def test_one_message_is_the_question(tokens: Tokens) -> None:
    parts = ChatMessage.model_validate(
        {"role": "user", "content": [{"type": "text", "text": " Where is "}, {"type": "text", "text": "Oslo? "}]}
    )
    question = extract_question([parts], agent_of(tokens), 100)
    assert (question.question, question.prompt) == ("Where is Oslo?", None)
    assert count_prompt_tokens(question, agent_of(tokens)) == len(tokens.encode("Question: Where is Oslo?\n"))


def test_earlier_turns_are_shown_through_the_chat_template(speaker: Callable[..., Tokens]) -> None:
    tokens = speaker("hermes")
    error_body = ChatMessage(role="developer", content="Be short.")
    question = extract_question([error_body, FIRST, SECOND, LAST], agent_of(tokens), 100)
    shown = prompts.render(question, "brief", Tags(), tokens)
    text = tokens.tokenizer.decode(shown)
    turns = [
        "system\nBe short.",
        "user\nWho wrote Emma?",
        "assistant\nJane Austen",
        "user\nQuestion: And where was she born?\n",
    ]
    assert text == "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns) + "<|im_start|>assistant\n"
    assert count_prompt_tokens(question, agent_of(tokens)) == len(shown)


def test_a_template_that_takes_no_such_chat_is_a_refusal(speaker: Callable[..., Tokens]) -> None:
    tokens = speaker(
        "hermes",
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{{ m.content }}{% endfor %}",
    )
    question = extract_question([ChatMessage(role="system", content="Be short."), LAST], agent_of(tokens), 100)
    with pytest.raises(ApiError, match="chat template rejects these messages"):
        count_prompt_tokens(question, agent_of(tokens))


def test_the_prompt_of_a_method_of_one_turn_is_counted(tokens: Tokens) -> None:
    direct = agent_of(tokens, method="direct", prompt=None)
    assert (
        count_prompt_tokens(extract_question([LAST], direct, 100), direct)
        > len(tokens.encode("And where was she born?")) + 20
    )


REFUSED: dict[str, tuple[list[dict[str, Any]], str]] = {
    "no user at the end": ([{"role": "assistant", "content": "Hm."}], "the last message has the role 'assistant'"),
    "empty": ([{"role": "user", "content": "  "}], "the last message is empty"),
    "a tool": ([{"role": "tool", "content": "4"}, {"role": "user", "content": "So?"}], "the role 'tool'"),
    "an image": ([{"role": "user", "content": [{"type": "image_url"}]}], "a part of type 'image_url'"),
    "too long": ([{"role": "user", "content": "a" * 101}], "101 characters; the maximum is 100"),
    "a chat": ([{"role": "system", "content": "Be kind."}, {"role": "user", "content": "So?"}], "has no chat template"),
}  # fmt: skip


@pytest.mark.parametrize(("messages", "sentence"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_question_is_refused(tokens: Tokens, messages: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(ApiError, match=sentence) as denied:
        extract_question([ChatMessage.model_validate(message) for message in messages], agent_of(tokens), 100)
    assert denied.value.status == 400


def test_a_chat_is_for_the_method_of_searching(speaker: Callable[..., Tokens]) -> None:
    direct = agent_of(speaker("hermes"), method="direct", prompt=None)
    with pytest.raises(ApiError, match="the method direct"):
        extract_question([FIRST, SECOND, LAST], direct, 100)
    assert extract_question([LAST], replace(direct), 100).prompt is None
