"""A PostgreSQL server and an MQTT broker of our own, on ports of this machine, that are ended and started again."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def program(name: str) -> str | None:
    """Where a program is, also in folders of servers; None where it is not installed."""
    folders = ["/usr/sbin", "/usr/local/sbin", *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


class Server(ABC):
    """A server whose data are in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """What starts it."""

    def user(self) -> dict[str, Any]:
        """As whom it runs."""
        return {}

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(
            self.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=self.folder, **self.user()
        )
        for _ in range(1000):
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        raise SystemExit(f"{self.command()[0]} did not start")

    def stop(self) -> None:
        """End it, as a restart of the machine would: it keeps what it promised to."""
        if self._process is not None:
            self._process.send_signal(self.ending)
            self._process.wait(30)

    ending = 15


class Mosquitto(Server):
    """An MQTT broker that keeps its sessions and lets anybody in."""

    def command(self) -> list[str]:
        """As `Server`."""
        file = self.folder / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "persistence true", "max_queued_messages 0"]
        lines += [f"persistence_location {self.folder}/", f"user {pwd.getpwuid(os.getuid()).pw_name}", ""]
        file.write_text("\n".join(lines))
        return [str(program("mosquitto")), "-c", str(file)]

    @property
    def url(self) -> str:
        """Its address."""
        return f"mqtt://127.0.0.1:{self.port}"


class Postgres(Server):
    """A PostgreSQL server with a new cluster."""

    ending = 2  # a fast shutdown, which breaks connections off

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        data = folder / "data"
        data.mkdir()
        if os.getuid() == 0:  # it refuses to run as root
            for one in (folder, data):
                shutil.chown(one, "postgres", "postgres")
            folder.parent.chmod(folder.parent.stat().st_mode | 0o11)  # a temporary one, which it must pass
        make = [str(program("initdb")), "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, cwd=folder, **self.user())

    def command(self) -> list[str]:
        """As `Server`."""
        options = ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        return [str(program("postgres")), "-D", str(self.folder / "data"), *options]

    def user(self) -> dict[str, Any]:
        """As `Server`."""
        return {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}

    @property
    def url(self) -> str:
        """Its address."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
