"""That one relay serves a file of sessions, or listens at a port, and which process it is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dphmm.errors import ConfigurationError, OutputError
from dphmm.release.session_database import is_server
from dphmm.serve.config import RelayConfig

try:
    import fcntl
except ImportError:  # where there is none, nothing is locked
    fcntl = None  # type: ignore[assignment]


def lock_file(config: RelayConfig) -> Path:
    """The file whose lock a relay holds: beside its file of sessions, or for its port where the store is a server."""
    if is_server(config.store):
        return Path(tempfile.gettempdir()) / f"dphmm-relay-{config.address[1]}.lock"
    return Path(f"{config.store}.lock")


@contextmanager
def only_relay(config: RelayConfig) -> Iterator[None]:
    """Hold the lock of a relay, with the number of this process in it.

    Raises
    ------
    ConfigurationError
        When another relay holds it.
    OutputError
        When the file cannot be written.
    """
    path = lock_file(config)
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise OutputError(f"{path} cannot be written ({problem.strerror}); check the folder") from None
    try:
        if fcntl is not None:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                other = os.read(file, 20).decode("ascii", "replace").strip()
                raise ConfigurationError(
                    f"{config.store if not is_server(config.store) else config.listen} is served by another relay, "
                    f"process {other}; end that one, or name another"
                ) from None
        os.truncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        yield
    finally:
        os.close(file)


def process_of(config: RelayConfig) -> int:
    """The number of the process that serves a relay.

    Raises
    ------
    ConfigurationError
        When none does.
    """
    path = lock_file(config)
    with_none = ConfigurationError(f"no relay holds {path}; start it with dphmm serve, or reload it as it was started")
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        raise with_none from None
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return int(os.read(file, 20))
    finally:
        os.close(file)
    raise with_none
