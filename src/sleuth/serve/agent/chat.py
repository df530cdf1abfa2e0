"""From the messages of a chat to the question an agent answers."""

from collections.abc import Sequence
from dataclasses import replace

from sleuth.agent import prompts
from sleuth.agent.episode import Agent, multi_turn
from sleuth.agent.one_turn import OneTurn
from sleuth.records import Question
from sleuth.serve.agent.problems import Denied
from sleuth.serve.agent.request import Message

INSTRUCTIONS = ("system", "developer")
ROLES = (*INSTRUCTIONS, "user", "assistant")
PARAM = "messages"
ALONE = "send the question alone, as one message of the user"


def question_of(messages: Sequence[Message], agent: Agent, characters: int) -> Question:
    """The last message as a question; earlier ones stand before it where the model can be shown them.

    That takes a chat template and the method of searching; elsewhere they are refused, never left out.
    """
    texts = [_text(place, message) for place, message in enumerate(messages)]
    if (length := sum(map(len, texts))) > characters:
        sentence = f"the messages have {length:,} characters, and {characters:,} are served; shorten them"
        raise Denied(400, sentence, param=PARAM, code="string_above_max_length")
    asked = texts[-1].strip()
    if messages[-1].role != "user":
        raise Denied(
            400, f"the last message is of {messages[-1].role!r}; expected the question, of 'user'", param=PARAM
        )
    if not asked:
        raise Denied(400, "the last message is empty; write a question there", param=PARAM)
    # The same name as `sleuth ask` has for it, so that the same seed draws the same tokens.
    question = Question(id="asked", question=asked, golden_answers=(), data_source="asked")
    if len(messages) == 1:
        return question
    _require_chat(agent)
    earlier = [
        {"role": "system" if message.role in INSTRUCTIONS else message.role, "content": text}
        for message, text in zip(messages[:-1], texts[:-1], strict=True)
    ]
    return replace(question, prompt=(*earlier, *prompts.fill(question, agent.config.template, agent.protocol)))


def prompt_tokens(question: Question, agent: Agent) -> int:
    """How many tokens the question takes with its prompt, before anything is found."""
    try:
        if isinstance(agent.method, OneTurn):
            return len(prompts.encode(agent.method.messages(question, "", agent), agent.tokens))
        return len(prompts.render(question, agent.config.template, agent.protocol, agent.tokens))
    except Exception as error:  # a template is a program of others, and may raise anything
        if question.prompt is None:
            raise
        raise Denied(400, f"the model's chat template does not take these messages ({error})", param=PARAM) from error


def _text(place: int, message: Message) -> str:
    """The words of a message."""
    where = f"messages.{place}"
    if message.role not in ROLES:
        raise Denied(400, f"{where} is of {message.role!r}; expected one of {', '.join(ROLES)}", param=PARAM)
    content = message.content
    if isinstance(content, list):
        other = next((part.type for part in content if part.type != "text" or part.text is None), None)
        if other is not None:
            raise Denied(400, f"{where} holds a part of type {other!r}; this agent reads text alone", param=PARAM)
        content = "".join(part.text or "" for part in content)
    return content or ""


def _require_chat(agent: Agent) -> None:
    if agent.tokens.tokenizer.chat_template is None:
        raise Denied(400, f"the model of this agent has no chat template, so it answers single questions; {ALONE}")
    if agent.method is not multi_turn:
        raise Denied(400, f"this agent answers by {agent.config.method}, which takes single questions; {ALONE}")
