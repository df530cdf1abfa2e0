"""The protocol of function calls where a server speaks the model's own form: only names and arguments are seen here."""

import re
from collections.abc import Sequence

from sleuth.agent import calls
from sleuth.agent.forms import Hermes
from sleuth.agent.frame import Frame
from sleuth.agent.observation import Observation
from sleuth.agent.quiet import quieter
from sleuth.agent.template import Function
from sleuth.agent.tool_calls import LOUD, Tools, instruction
from sleuth.records import Malformed

ANSWERED = "</answer>"


class ChatTools(Tools):
    """Calls are written down between <tool_call> tags, whatever the model's form is; observations are bare text."""

    def __init__(self, names: Sequence[str] = ("search",)) -> None:
        self._names = tuple(names)
        self.functions: tuple[Function, ...] = tuple(calls.FUNCTIONS[name] for name in names)
        self._form = Hermes()
        self.stops = (ANSWERED,)
        self._shown = self._told = Frame("", "")
        self._tag = re.compile(rf"</?(?:{'|'.join(('think', 'answer', *self._form.words))})>")
        self._quiet = quieter(LOUD, None)
        self.instruction = instruction(names)

    def correct(self, action: Malformed) -> Observation:
        return self._told.around(
            f"No action was taken: {action.reason}. Call a function, or answer like this: <answer> answer </answer>"
        )
