"""Ray Data and Ray Serve: map rows on a pool of actors, and deploy replicas behind handles. Imports ray's libraries."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sleuth.cluster import ray_client
from sleuth.errors import InputError, MissingExtra

HEALTH_SECONDS = 2.0  # between two checks of a replica
HEALTH_TIMEOUT = 60.0  # a loaded machine answers late
STARTS = 2  # attempts to start a replica before its error is reported
RUNNING = "RUNNING"


def map_on_actors(
    cls: type, arguments: Sequence[Any], rows: Sequence[Mapping[str, Any]], *, actors: int, needs: Mapping[str, float]
) -> Iterator[dict[str, Any]]:
    """Call instances of `cls` in actors with one row at a time; yield their results as they arrive, in any order.

    Rows of a lost actor run again on another. Raises InputError with the cause if a call fails.
    """
    data = _data()
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = data.DataContext.get_current()
    context.enable_progress_bars = False
    mapped = data.from_items([dict(row) for row in rows], override_num_blocks=len(rows)).map_batches(
        cls,
        batch_size=1,
        fn_constructor_args=tuple(arguments),
        compute=data.ActorPoolStrategy(size=actors),
        num_cpus=needs["CPU"],
        num_gpus=needs.get("GPU", 0),
    )
    try:
        for batch in mapped.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            yield from batch.to_pylist()
    except Exception as error:
        if not ray_client.is_ray_error(error):
            raise
        raise InputError(f"Ray Data failed: {ray_client.describe_failure(error)}") from error


@contextmanager
def deployed(
    applications: Mapping[str, Sequence[Any]], cls: type, *, replicas: int, needs: Mapping[str, float]
) -> Iterator[list[Any]]:
    """Deploy `replicas` instances of `cls` for each name, with its arguments; yield one handle per name.

    Each replica answers one request at a time. Ray replaces those that die. Raises InputError if one cannot start.
    """
    serve = _serve()
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    deployment = serve.deployment(
        cls,
        num_replicas=replicas,
        max_ongoing_requests=1,
        health_check_period_s=HEALTH_SECONDS,
        health_check_timeout_s=HEALTH_TIMEOUT,
        max_constructor_retry_count=STARTS,
        graceful_shutdown_timeout_s=5,
        ray_actor_options={"num_cpus": needs["CPU"], "num_gpus": needs.get("GPU", 0)},
        logging_config={"log_level": "ERROR", "enable_access_log": False},
    )
    targets = [
        serve.RunTarget(deployment.bind(*arguments), name=name, route_prefix=None)
        for name, arguments in applications.items()
    ]
    # Requests come through handles only: no proxy, which would open a port on every node.
    serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
    try:
        yield _run(serve, targets)
    finally:
        for wait in (False, True):  # all end at the same time
            for name in applications:
                serve.delete(name, _blocking=wait)


def _run(serve: Any, targets: Sequence[Any]) -> list[Any]:
    try:
        handles: list[Any] = serve.run_many(targets)
    except RuntimeError as error:  # its text names the application, the status of its deployment has the cause
        found = serve.status().applications.values()
        causes = [each.message for application in found for each in application.deployments.values() if each.message]
        cause = RuntimeError(causes[0] if causes else str(error))
        raise InputError(f"a replica cannot start: {ray_client.describe_failure(cause)}") from error
    return handles


def is_lost(error: BaseException) -> bool:
    """Whether a call through a handle failed because its replica is gone or being stopped."""
    from ray.serve import exceptions

    gone = (exceptions.DeploymentUnavailableError, exceptions.ReplicaUnavailableError, exceptions.RequestCancelledError)
    return ray_client.is_lost(error) or isinstance(error, gone)


def ready_replicas(applications: Sequence[str]) -> list[int]:
    """Return the number of running replicas of each application."""
    found = _serve().status().applications
    return [
        sum(each.replica_states.get(RUNNING, 0) for each in found[name].deployments.values()) if name in found else 0
        for name in applications
    ]


def _data() -> Any:
    try:
        import ray.data
    except ImportError as error:  # ray is installed without the packages of its libraries
        raise MissingExtra(f"Ray Data ({error.name})", "ray") from error
    return ray.data


def _serve() -> Any:
    try:
        import ray.serve
    except ImportError as error:
        raise MissingExtra(f"Ray Serve ({error.name})", "ray") from error
    return ray.serve
