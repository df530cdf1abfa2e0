"""The distance to the reference, and where it is charged."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from sleuth.config.section import Factor, Positive, Section


class KLConfig(Section):
    place: Annotated[
        Literal["none", "loss", "reward"], Field(description="where the distance to the reference is charged")
    ] = "none"
    estimator: Annotated[
        Literal["k1", "k2", "k3"] | None,
        Field(description="Schulman's estimators: k1 in the reward, k2 or k3 in the loss; absent there: k3"),
    ] = None
    coefficient: Annotated[Factor, Field(description="weight of the distance, at first where it adapts")] = 0.001
    target: Annotated[
        Factor | None, Field(description="distance a token towards which the weight adapts; absent: it is fixed")
    ] = None
    horizon: Annotated[Positive, Field(description="episodes over which it adapts")] = 10_000

    @model_validator(mode="after")
    def _effective(self) -> Self:
        if self.place == "none":
            self._without_effect("algorithm.kl.place = none", "estimator", "coefficient", "target", "horizon")
        if self.target is None:
            self._without_effect("no algorithm.kl.target", "horizon")
        if self.place == "loss" and self.estimator == "k1":
            raise ValueError(
                "estimator = k1 has no effect with algorithm.kl.place = loss, where its gradient is zero on average; "
                "choose k2 or k3, or algorithm.kl.place = reward"
            )
        if self.place == "reward" and self.estimator in ("k2", "k3"):
            raise ValueError(
                f"estimator = {self.estimator} does not hold the policy near the reference with algorithm.kl.place = "
                "reward, where tokens that became too unlikely are charged as well; leave it out for k1, or choose "
                "algorithm.kl.place = loss"
            )
        return self

    @property
    def named(self) -> Literal["k1", "k2", "k3"]:
        """The estimator that is meant."""
        return self.estimator or ("k1" if self.place == "reward" else "k3")
