"""What the HTTP APIs of the policy share: errors, strict request models, and event streams."""

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as shorten
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import Response

from sleuth.gateway.calls import Call, Reply
from sleuth.gateway.endpoint import MODEL
from sleuth.http.requests import validate_body
from sleuth.http.responses import JSON, HttpProblem, encode_json

ERROR_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
ERROR_CODES = {401: "invalid_api_key", 429: "rate_limit_exceeded"}
KEEP_ALIVE = b": still here\n\n"  # a comment, which clients skip
MAX_CHOICES, MAX_STOPS = 128, 16
SHOWN = 80  # characters of a value in an error

_UNION_MEMBER = re.compile(r"str$|[A-Z]|\w+\[")  # a type, which pydantic includes in the place of a problem

Decode = Callable[[Sequence[int]], str]
Positive = Annotated[int, Field(ge=1)]
Temperature = Annotated[float, Field(ge=0, le=2)]
TopP = Annotated[float, Field(gt=0, le=1)]
TopK = Annotated[int, Field(ge=-1), AfterValidator(lambda k: max(k, 0))]  # vLLM's -1 keeps every token, as 0 does


class ApiError(HttpProblem):
    """A refused request; `param` names the field and `code` the problem, as in OpenAI's API."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, headers)
        self.param, self.code = param, code


def error_body(error: HttpProblem) -> dict[str, Any]:
    param, code = (error.param, error.code) if isinstance(error, ApiError) else (None, None)
    kind = ERROR_TYPES.get(error.status, "server_error" if error.status >= 500 else "invalid_request_error")
    code = code or ERROR_CODES.get(error.status)
    return {"error": {"message": str(error), "type": kind, "param": param, "code": code}}


def error_response(error: HttpProblem) -> Response:
    return Response(encode_json(error_body(error)), error.status, error.headers, media_type=JSON)


class Strict(BaseModel):
    """A part of a request: wrong types are errors, other fields are ignored."""

    model_config = ConfigDict(strict=True, frozen=True, allow_inf_nan=False)


class Part(Strict):
    """A part of a message."""

    type: str
    text: str | None = None


class ApiRequest(Strict):
    """A request body: fields that it does not declare must be ignorable, or have a value without effect.

    `unsupported` maps the fields that would change the reply to their neutral values and the reason of the refusal.
    """

    model_config = ConfigDict(extra="allow")

    ignored: ClassVar[Collection[str]] = ()
    unsupported: ClassVar[Mapping[str, tuple[Sequence[object], str]]] = {}
    example: ClassVar[str]

    model: str | None = None
    stream: bool | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None


Body = TypeVar("Body", bound=ApiRequest)
Body_co = TypeVar("Body_co", bound=ApiRequest, covariant=True)


@dataclass(frozen=True, slots=True)
class ParsedRequest(Generic[Body_co]):
    """A request and the call to the policy that it makes."""

    call: Call
    body: Body_co

    @property
    def model(self) -> str:
        return self.body.model or MODEL

    @property
    def stream(self) -> bool:
        return bool(self.body.stream)

    @property
    def is_policy(self) -> bool:
        """Whether the model is the policy, perhaps in a role."""
        return self.model.partition("/")[0] == MODEL


class StreamWriter(Protocol):
    """Writes a reply as server-sent events."""

    def start(self) -> bytes: ...

    def content(self, index: int, text: str) -> bytes:
        """Write the next piece of the content of a choice."""

    def end(self, reply: Reply) -> bytes:
        """Write the rest of the reply: content that was not yet written, function calls, finish reasons and usage."""

    def error(self, problem: HttpProblem) -> bytes:
        """End the stream with an error."""


@dataclass(frozen=True, slots=True)
class Api:
    """The functions of an API; `parse` raises ApiError."""

    parse: Callable[[bytes], ParsedRequest[Any]]
    respond: Callable[[ParsedRequest[Any], Reply, Decode], dict[str, Any]]
    writer: Callable[[ParsedRequest[Any], Decode], StreamWriter]
    error_response: Callable[[HttpProblem], Response] = error_response


def role_of(model: str | None) -> str:
    """Return ROLE of the model name `policy/ROLE`, else an empty string."""
    name, _, role = (model or "").partition("/")
    return role if name == MODEL else ""


def event(content: Mapping[str, Any], name: str | None = None) -> bytes:
    """Encode a server-sent event."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode_json(content) + b"\n\n"


def parse_request(body: bytes, model: type[Body]) -> Body:
    """Parse a request body; raises ApiError for a field that would have no effect."""
    try:
        request = validate_body(body, model)
    except ValidationError as error:
        raise _validation_error(error, model.example) from None
    for name, value in (request.model_extra or {}).items():
        if value is None or name in model.ignored:
            continue
        if name not in model.unsupported:
            raise ApiError(400, f"unknown field {name!r}; remove it", param=name, code="unknown_parameter")
        neutral, reason = model.unsupported[name]
        if value not in neutral:
            raise unsupported(name, value, reason)
    return request


def unsupported(name: str, value: object, reason: str) -> ApiError:
    message = f"{name} is {_as_json(value)}, which is not supported ({reason}); remove it"
    return ApiError(400, message, param=name, code="unsupported_parameter")


def _validation_error(error: ValidationError, example: str) -> ApiError:
    # Of a union, the problem deepest inside the value belongs to the member that was meant.
    problems: Any = error.errors(include_url=False, include_context=False)
    first = max(problems, key=lambda problem: (problem["loc"][:1] == problems[0]["loc"][:1], len(problem["loc"])))
    steps = [str(step) for step in first["loc"]]
    place = ".".join(step for step in steps if not _UNION_MEMBER.match(step))
    param = steps[0] if steps else None
    if first["type"] == "json_invalid":
        reason = first["msg"].removeprefix("Invalid JSON: ")
        return ApiError(400, f"the body is not JSON ({reason}); expected {example}", code="invalid_json")
    if first["type"] == "missing":
        return ApiError(400, f"{place} is missing; expected {example}", param=param)
    what, text = place or "the body", first["msg"]
    match first["type"]:
        case "too_short":
            message = f"{what} is empty; expected at least one item"
        case "value_error":
            message = f"{what}: {text.removeprefix('Value error, ')}"
        case _:
            expected = text.removeprefix("Input should be ")
            message = f"{what} is {_as_json(first['input'])}; expected {expected[0].lower() + expected[1:]}"
    return ApiError(400, message, param=param)


def _as_json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


def text_of(content: str | Sequence[Part] | None, place: str, kinds: Collection[str] = ("text",)) -> str:
    """Join the text parts of a content; raises ApiError for other parts, such as images."""
    if content is None or isinstance(content, str):
        return content or ""
    other = next((part.type for part in content if part.type not in kinds or part.text is None), None)
    if other is not None:
        message = f"{place} has a part of type {other!r}; only text is supported"
        raise ApiError(400, message, param=place.partition(".")[0])
    return "".join(part.text or "" for part in content)


def stop_strings(stop: str | Sequence[str] | None, param: str = "stop") -> tuple[str, ...]:
    stops = tuple(dict.fromkeys([stop] if isinstance(stop, str) else stop or ()))
    if stops == ("",):
        return ()
    if len(stops) > MAX_STOPS or "" in stops:
        message = f"{param} is {shorten(list(stops))}; expected at most {MAX_STOPS} strings, none empty"
        raise ApiError(400, message, param=param)
    return stops
