"""The exceptions of Sleuth.

SleuthError
├── UserError             the user can fix it: printed as one line, exit code 2
│   ├── ConfigError       an unknown setting, a wrong type, a setting without effect
│   ├── InputError        a file or folder that is missing, malformed, empty, or already exists
│   │   └── NothingMade   an input from which a command can make nothing: exit code 4
│   ├── MissingExtra      an optional dependency that is not installed
│   ├── FunctionFailed    a user's function that raised or returned an invalid value
│   └── ReplayMiss        a search that is not in the recording
├── SearchUnavailable     one query failed; returned as a value, one per query
├── EngineFailure         generation failed; the trajectory is unusable
└── TrainingStopped       a guard stopped the run

SystemExit
└── Interrupted           SIGINT or SIGTERM: exit code 128 + signal number
"""


class SleuthError(Exception):
    """Base class of Sleuth's exceptions."""


class UserError(SleuthError):
    """A problem that the user can fix: one sentence with problem, value, expectation and remedy."""

    exit_code = 2


class ConfigError(UserError):
    """A setting that is unknown, of the wrong type, or without effect."""


class InputError(UserError):
    """A file or folder that is missing, malformed, empty, or already exists."""


class NothingMade(InputError):
    """An input from which a command can make nothing, such as documents without questions."""

    exit_code = 4


class MissingExtra(UserError):
    """An optional dependency that is not installed."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed; install it with: pip install 'sleuth[{extra}]'")


class FunctionFailed(UserError):
    """A user's function raised or returned an invalid value; in an episode, the trajectory is unusable."""


class ReplayMiss(UserError):
    """A search that is not in the recording; the run stops, because it has diverged from the recorded run."""

    def __init__(self, recording: str, query: str, k: int) -> None:
        super().__init__(
            f"the recording {recording} has no results for {query!r} with k={k}; "
            "replay it with the recorded settings, model and samples, or search the index"
        )


class SearchUnavailable(SleuthError):
    """One query failed; a retriever returns this in place of the query's hits."""

    def __init__(self, query: str, cause: str) -> None:
        super().__init__(f"search failed for the query {query!r}: {cause}")
        self.query = query
        self.cause = cause

    def __reduce__(self) -> tuple[type["SearchUnavailable"], tuple[str, str]]:
        return type(self), (self.query, self.cause)  # the default would pass the message


class EngineFailure(SleuthError):
    """Generation failed for a reason outside the model."""


class TrainingStopped(SleuthError):
    """A guard stopped the run; the message names the guard and the reason."""


class Interrupted(SystemExit):
    """A signal asked the process to stop: exit code 128 + signal number.

    Not a KeyboardInterrupt, which typer would turn into exit code 130 even for SIGTERM.
    """

    def __init__(self, signal: int) -> None:
        super().__init__(128 + signal)
        self.signal = signal
