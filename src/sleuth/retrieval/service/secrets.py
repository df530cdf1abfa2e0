"""What is told to nobody: keys and tokens, taken out of what others say."""

import json
from collections.abc import Mapping
from urllib.parse import quote, quote_plus


class Secrets:
    """Values by the names that are shown in their place."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self._values)})"

    def hidden(self, text: str) -> str:
        """A text of others, without the secrets that may stand in it: servers repeat what they were sent."""
        for name, value in self._values.items():
            for form in (value, json.dumps(value)[1:-1], quote(value, safe=""), quote_plus(value)):
                text = text.replace(form, f"[{name}]")
        return text
