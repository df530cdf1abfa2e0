"""Requests to an agent: the fields that it decides itself, and the question in the messages."""

from collections.abc import Collection, Mapping, Sequence

from sleuth.agent import methods, prompts
from sleuth.agent.episode import Agent, multi_turn
from sleuth.gateway import api
from sleuth.gateway.api import ApiError
from sleuth.gateway.chat_completions import INSTRUCTION_ROLES, ChatMessage, ChatRequest
from sleuth.records import Question

ROLES = (*INSTRUCTION_ROLES, "user", "assistant")
SINGLE_QUESTION = "send the question alone, as one message of the user"

# Fields of the gateway's API that the agent decides: their neutral values, and why any other value is refused.
UNSUPPORTED: Mapping[str, tuple[Sequence[object], str]] = {
    "include_stop_str_in_output": ((False,), "the answer ends before a stop string"),
    "return_token_ids": ((False,), "an answer is the result of several prompts"),
    "tool_choice": (("none", "auto"), "the agent decides which of its tools to call"),
}


def parse_request(body: bytes, tools: Collection[str] = ("search",)) -> ChatRequest:
    """Parse a request to an agent with these tools; raises ApiError for a field that would have no effect."""
    request = api.parse_request(body, ChatRequest)
    for name, (neutral, reason) in UNSUPPORTED.items():
        if (value := getattr(request, name)) is not None and value not in neutral:
            raise api.unsupported(name, value, reason)
    api.stop_strings(request.stop)
    names = {tool.function.name for tool in request.tools or ()}
    if names and (names != set(tools) or request.tool_choice == "none"):
        reason = f"the agent calls its own tools, which are {', '.join(tools)}"
        raise api.unsupported("tools", sorted(names), reason)
    return request


def extract_question(messages: Sequence[ChatMessage], agent: Agent, max_characters: int) -> Question:
    """Return the last message as a question, with earlier messages before it in the prompt.

    Raises ApiError for earlier messages without a chat template, or with a method other than `search`.
    """
    texts = [_text(place, message) for place, message in enumerate(messages)]
    if (length := sum(map(len, texts))) > max_characters:
        message = f"the messages have {length:,} characters; the maximum is {max_characters:,}, shorten them"
        raise ApiError(400, message, param="messages", code="string_above_max_length")
    if messages[-1].role != "user":
        message = f"the last message has the role {messages[-1].role!r}; expected the question, with the role 'user'"
        raise ApiError(400, message, param="messages")
    if not texts[-1].strip():
        raise ApiError(400, "the last message is empty; write a question", param="messages")
    # The id that `sleuth ask` uses, so that the same seed samples the same tokens.
    question = Question(id="asked", question=texts[-1].strip(), golden_answers=(), data_source="asked")
    if len(messages) == 1:
        return question
    if agent.tokens.tokenizer.chat_template is None:
        raise ApiError(400, f"the model has no chat template and answers single questions only; {SINGLE_QUESTION}")
    if agent.method is not multi_turn:
        raise ApiError(400, f"the method {agent.config.method} answers single questions only; {SINGLE_QUESTION}")
    earlier = [
        {"role": "system" if message.role in INSTRUCTION_ROLES else message.role, "content": text}
        for message, text in zip(messages[:-1], texts[:-1], strict=True)
    ]
    config = agent.config
    return prompts.continue_conversation(
        question, earlier, config.template, agent.protocol, abstain=bool(config.abstain)
    )


def count_prompt_tokens(question: Question, agent: Agent) -> int:
    """Like `methods.count_prompt_tokens`; raises ApiError if the chat template rejects the client's messages."""
    try:
        return methods.count_prompt_tokens(agent, question)
    except Exception as error:  # templates are third-party programs
        if question.prompt is None:
            raise
        message = f"the model's chat template rejects these messages ({error})"
        raise ApiError(400, message, param="messages") from error


def _text(place: int, message: ChatMessage) -> str:
    """Return the content of a message as text."""
    where = f"messages.{place}"
    if message.role not in ROLES:
        error = f"{where} has the role {message.role!r}; expected one of {', '.join(ROLES)}"
        raise ApiError(400, error, param="messages")
    return api.text_of(message.content, where)
