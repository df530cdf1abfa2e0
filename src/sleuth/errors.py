"""Every exception Sleuth raises on purpose.

SleuthError
├── UserError             something the user can put right: printed as one line, exit code 2
│   ├── ConfigError       an unknown key, a wrong type, a knob without effect
│   ├── InputError        a file or folder that is missing, malformed, empty or in the way
│   ├── MissingExtra      an optional library that is not installed
│   ├── FunctionFailed    a function of the user's own that raised, or returned what it may not
│   └── ReplayMiss        a search that a recording does not hold
├── SearchUnavailable     one query got no answer; returned as a value, one per query
├── EngineFailure         generation broke; the trajectory is unusable
└── TrainingStopped       a guard ended the run

SystemExit
└── Interrupted           SIGINT or SIGTERM: exit code 128 + the signal's number
"""


class SleuthError(Exception):
    """Root of everything Sleuth raises on purpose."""


class UserError(SleuthError):
    """A problem the user can put right: one sentence with problem, value, expectation and remedy."""


class ConfigError(UserError):
    """A setting that is unknown, of the wrong type, or without effect."""


class InputError(UserError):
    """A file or folder that is missing, malformed, empty or in the way."""


class MissingExtra(UserError):
    """An optional library that is needed here and not installed."""

    def __init__(self, library: str, extra: str) -> None:
        super().__init__(f"{library} is not installed; it comes with: pip install 'sleuth[{extra}]'")


class FunctionFailed(UserError):
    """A user's function raised or returned what it may not; in an episode, the trajectory is unusable."""


class ReplayMiss(UserError):
    """A search that a recording does not hold; it ends the run, which is no longer the one recorded."""

    def __init__(self, recording: str, query: str, k: int) -> None:
        super().__init__(
            f"the recording {recording} has no answer for {query!r} with k={k}; "
            "replay it with the settings, model and samples it was recorded with, or search the index itself"
        )


class SearchUnavailable(SleuthError):
    """One query got no answer; a retriever returns it in the place of that query's hits."""

    def __init__(self, query: str, cause: str) -> None:
        super().__init__(f"no answer for the query {query!r}: {cause}")
        self.query = query
        self.cause = cause


class EngineFailure(SleuthError):
    """Generation broke off for a reason that is not the model's."""


class TrainingStopped(SleuthError):
    """A guard ended the run; the message says which and why."""


class Interrupted(SystemExit):
    """A signal asked the process to end: exit code 128 + its number.

    Not a KeyboardInterrupt, which the command line's library turns into 130 for SIGTERM too.
    """

    def __init__(self, signal: int) -> None:
        super().__init__(128 + signal)
        self.signal = signal
