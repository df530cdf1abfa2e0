"""Metrics to MLflow, where MLFLOW_TRACKING_URI says."""

import time
from collections.abc import Mapping

from mlflow.entities import Metric, Param
from mlflow.tracking import MlflowClient

from sleuth.train.tracking.session import Session

NAME = "mlflow"
PARAMS = 100  # that it takes in one request


class MlflowTracker:
    """An MLflow run of the project's experiment, by the client alone: the user's active run is left as it is."""

    def __init__(self, session: Session) -> None:
        self._client = MlflowClient()
        self._id = session.known(NAME) or session.keep(NAME, self._begun(session))

    def _begun(self, session: Session) -> str:
        found = self._client.get_experiment_by_name(session.project)
        experiment = self._client.create_experiment(session.project) if found is None else found.experiment_id
        begun: str = self._client.create_run(experiment, run_name=session.name).info.run_id
        params = [Param(name, str(value)) for name, value in session.settings().items()]
        for first in range(0, len(params), PARAMS):
            self._client.log_batch(begun, params=params[first : first + PARAMS])
        return begun

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        now = round(time.time() * 1000)
        self._client.log_batch(self._id, metrics=[Metric(name, value, now, step) for name, value in metrics.items()])

    def close(self) -> None:
        self._client.set_terminated(self._id)
