"""Who does the work of a command on many people: options that several of them share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from dphmm.cli.inputs import options
from dphmm.errors import ConfigurationError

if TYPE_CHECKING:
    from dphmm.jobs.workers import Engine

engine_options = options(
    click.option("--engine", default="processes", show_default=True, type=click.Choice(["processes", "dask"])),
    click.option("--workers", type=int, help="Processes on this machine. [default: one per processor]"),
    click.option("--scheduler", metavar="ADDRESS", help="Of a Dask cluster, such as tcp://10.0.0.5:8786."),
)


def engine_of(given: Mapping[str, Any]) -> Engine:
    """Who works, by the options.

    Raises
    ------
    ConfigurationError
        When they contradict each other.
    MissingDependencyError
        For Dask without distributed.
    """
    from dphmm.jobs.workers import DaskCluster, Processes

    workers, scheduler = given["workers"], given["scheduler"]
    if given["engine"] == "dask":
        if scheduler is None:
            raise ConfigurationError("--engine dask needs a cluster; give its --scheduler, such as tcp://10.0.0.5:8786")
        if workers is not None:
            raise ConfigurationError("--workers is for processes; a Dask cluster has its own")
        return DaskCluster(scheduler)
    if scheduler is not None:
        raise ConfigurationError("--scheduler is for Dask; give --engine dask too")
    return Processes(workers)
