"""What an outside agent receives: where to call the model, search, and post its reward; needs only httpx."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MODEL = "policy"  # `policy/ROLE` names a role
TOKEN_ENV = "SLEUTH_GATEWAY_TOKEN"  # noqa: S105 (the variable with the token of workers)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The OpenAI-compatible endpoint of one rollout: pass `base_url` and `api_key` to any client."""

    base_url: str
    api_key: str
    model: str = MODEL

    @property
    def rollout_url(self) -> str:
        return self.base_url.removesuffix("/v1")

    @property
    def reward_url(self) -> str:
        """POST {"reward": 1.0} here, or return the reward."""
        return f"{self.rollout_url}/reward"

    @property
    def search_url(self) -> str:
        """The run's retriever, in the format of /retrieve: {"queries": [...], "topk": 3}."""
        return f"{self.rollout_url}/retrieve"

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for a program that is started for the task."""
        return {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_KEY": self.api_key,
            "OPENAI_MODEL": self.model,
            "SLEUTH_REWARD_URL": self.reward_url,
            "SLEUTH_SEARCH_URL": self.search_url,
        }

    def search(self, query: str, k: int | None = None) -> list[dict[str, Any]]:
        """Search the run's index; return rows such as {"id": ..., "contents": ..., "score": ...}, best first."""
        import httpx  # only agents that search need it

        reply = httpx.post(self.search_url, json=self._search_body([query], k), **self._options)
        return _rows(reply)[0]

    async def search_async(self, query: str, k: int | None = None) -> list[dict[str, Any]]:
        """Like `search`, for async agents."""
        import httpx

        async with httpx.AsyncClient(**self._options) as client:
            reply = await client.post(self.search_url, json=self._search_body([query], k))
        return _rows(reply)[0]

    @property
    def _options(self) -> dict[str, Any]:
        # Without TLS there is no certificate to verify, and loading the known ones takes 50 ms per client.
        encrypted = self.base_url.startswith("https")
        return {"headers": {"Authorization": f"Bearer {self.api_key}"}, "timeout": 120, "verify": encrypted}

    def _search_body(self, queries: Sequence[str], k: int | None) -> dict[str, Any]:
        return {"queries": list(queries), "topk": k, "return_scores": True}


def _rows(reply: Any) -> list[list[dict[str, Any]]]:
    if reply.is_error:
        raise RuntimeError(f"the search was refused with status {reply.status_code}: {reply.text[:300]}")
    results: list[list[Mapping[str, Any]]] = reply.json()["result"]
    return [[{**hit["document"], "score": hit["score"]} for hit in hits] for hits in results]
