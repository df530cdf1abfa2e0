"""Where the simulation's rates come from: the planner, finished runs, a file, in this order of precedence."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from sleuth.cluster.measured_rates import measure_rates
from sleuth.cluster.planned_rates import fits, plan_rates
from sleuth.cluster.rates import ClusterRates, rates_row, read_rates
from sleuth.config.tree import Config
from sleuth.runs.run import Run
from sleuth.train.accelerators import Accelerator
from sleuth.train.plan import Models


@dataclass(frozen=True)
class RateSource:
    """Rates of a run on a device: planned, replaced by those measured in `runs`, then by those of a JSON file.

    `search` overrides the latency of a search.
    """

    config: Config
    device: Accelerator
    models: Models
    runs: tuple[Run, ...] = ()
    file: Path | None = None
    search: float | None = None

    @property
    def device_type(self) -> str:
        return "cuda" if self.device.is_gpu else "cpu"

    def rates(self, trainers: int, separate: bool) -> ClusterRates:
        """Return the rates of so many trainers, which do not generate if they are `separate`."""
        rates = plan_rates(self.config, self.device, self.models, trainers=trainers, separate=separate)
        if self.runs:
            measured = self._measured
            # One process has shown neither collectives nor the transfer of weights to other processes.
            transfer = rates.transfer if separate or trainers > 1 else measured.transfer
            rates = replace(measured, pack_seconds=rates.pack_seconds, weights=rates.weights, transfer=transfer)
        if self.file is not None:
            rates = read_rates(self.file, rates_row(rates))
        return rates if self.search is None else replace(rates, search=self.search)

    def rates_that_fit(self, trainers: int, separate: bool) -> ClusterRates | None:
        """Return the rates of so many trainers; None if the model does not fit into their memory."""
        if not fits(self.config, self.device, self.models, trainers, separate=separate):
            return None
        return self.rates(trainers, separate)

    @cached_property
    def _measured(self) -> ClusterRates:
        base = plan_rates(self.config, self.device, self.models)
        return measure_rates(self.runs, base, self.device_type)
