"""Exact match that the authors of the recipes published, on the seven sets of Search-R1."""

from dataclasses import dataclass

from sleuth.errors import ConfigError
from sleuth.evaluate.benchmarks import SUITES

SUITE = "search-r1"
SETS = tuple(SUITES[SUITE])
TRAINING_QUESTIONS = 169_615  # NQ and HotpotQA


@dataclass(frozen=True, slots=True)
class Published:
    """Published exact match of a model: the mean of the seven sets, and each set in the order of SETS if known."""

    model: str
    mean: float
    source: str
    em: tuple[float, ...] = ()

    @property
    def sets(self) -> dict[str, float]:
        return dict(zip(SETS, self.em, strict=True)) if self.em else {}


SEARCH_R1 = "arXiv 2503.09516v5"
AGENT_LIGHTNING = "microsoft/agent-lightning, examples/search_r1, version 0.3"
# By recipe, the model of the recipe first. Empty: the authors published no figures on these sets. The rows of the base
# 3B, of the instruct 7B, and of the base 7B with GRPO were read in arXiv 2512.04220v2, tables 1 and 2, which quote
# Search-R1.
PUBLISHED: dict[str, tuple[Published, ...]] = {
    "search-r1-ppo-qwen2.5-3b": (
        Published("Qwen/Qwen2.5-3B", 0.303, SEARCH_R1, (0.406, 0.587, 0.435, 0.284, 0.273, 0.049, 0.088)),
        Published("Qwen/Qwen2.5-3B-Instruct", 0.325, SEARCH_R1, (0.341, 0.545, 0.378, 0.324, 0.319, 0.103, 0.264)),
    ),
    "search-r1-ppo-qwen2.5-7b": (
        Published("Qwen/Qwen2.5-7B", 0.431, SEARCH_R1, (0.480, 0.638, 0.457, 0.433, 0.382, 0.196, 0.432)),
        Published("Qwen/Qwen2.5-7B-Instruct", 0.385, SEARCH_R1, (0.393, 0.610, 0.397, 0.370, 0.414, 0.146, 0.368)),
    ),
    "search-r1-ppo-llama-3.2-3b": (),
    "search-r1-grpo-qwen2.5-3b": (
        Published("Qwen/Qwen2.5-3B", 0.312, SEARCH_R1, (0.421, 0.583, 0.413, 0.297, 0.274, 0.066, 0.128)),
        Published("Qwen/Qwen2.5-3B-Instruct", 0.336, SEARCH_R1, (0.397, 0.565, 0.391, 0.331, 0.310, 0.124, 0.232)),
    ),
    "search-r1-grpo-qwen2.5-7b": (
        Published("Qwen/Qwen2.5-7B", 0.350, SEARCH_R1, (0.395, 0.560, 0.388, 0.326, 0.297, 0.125, 0.360)),
        Published("Qwen/Qwen2.5-7B-Instruct", 0.396, SEARCH_R1, (0.429, 0.623, 0.427, 0.386, 0.346, 0.162, 0.400)),
    ),
    "search-r1-grpo-llama-3.2-3b": (),
    "verl-grpo-qwen2.5-3b": (),
    "slime-grpo-qwen2.5-3b": (),
    "rlinf-grpo-qwen2.5-3b": (),
    "agent-lightning-grpo-llama-3.2-3b": (
        # Published as "Llama-3.2-3B"; the script of that version names the Instruct model.
        Published("meta-llama/Llama-3.2-3B", 0.249, AGENT_LIGHTNING),
        Published(
            "Qwen/Qwen2.5-3B-Instruct", 0.406, AGENT_LIGHTNING, (0.453, 0.617, 0.438, 0.426, 0.364, 0.171, 0.376)
        ),
        Published(
            "Qwen/Qwen2.5-7B-Instruct", 0.452, AGENT_LIGHTNING, (0.465, 0.659, 0.468, 0.437, 0.462, 0.203, 0.472)
        ),
    ),
}


def require_published(recipe: str) -> None:
    """Raise ConfigError if this is not the recipe of a published system."""
    if recipe not in PUBLISHED:
        raise ConfigError(
            f"{recipe!r} is not the recipe of a published system; expected one of: {', '.join(sorted(PUBLISHED))}"
        )


def find_published(recipe: str, model: str) -> Published | None:
    """Return the figures published for this model, or for the recipe's own model; None if there are none."""
    known = PUBLISHED[recipe]
    return next((each for each in known if each.model == model), known[0] if known else None)
