"""A PostgreSQL server and an MQTT broker on local ports, which can be restarted."""

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


def find_free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def find_program(name: str) -> str | None:
    """Return the path of a program, also from folders of servers, or None."""
    folders = ["/usr/sbin", "/usr/local/sbin", *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(folders))


class Server(ABC):
    """A server with its data in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.port = folder, find_free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that starts the server."""

    def user(self) -> dict[str, Any]:
        """Return the user and group under which it runs."""
        return {}

    def start(self) -> None:
        """Start the server and wait until it listens."""
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
        """End the server regularly, as a restart of the machine would."""
        if self._process is not None:
            self._process.send_signal(self.ending)
            self._process.wait(30)

    ending = 15


class Mosquitto(Server):
    """An MQTT broker with persistent sessions and anonymous access."""

    def command(self) -> list[str]:
        """See `Server`."""
        file = self.folder / "mosquitto.conf"
        lines = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "persistence true", "max_queued_messages 0"]
        lines += [f"persistence_location {self.folder}/", f"user {pwd.getpwuid(os.getuid()).pw_name}", ""]
        file.write_text("\n".join(lines))
        return [str(find_program("mosquitto")), "-c", str(file)]

    @property
    def url(self) -> str:
        """URL of the server."""
        return f"mqtt://127.0.0.1:{self.port}"


class Postgres(Server):
    """A PostgreSQL server with a new cluster."""

    ending = 2  # fast shutdown, which closes connections

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        data = folder / "data"
        data.mkdir()
        if os.getuid() == 0:  # PostgreSQL refuses to run as root
            for path in (folder, data):
                shutil.chown(path, "postgres", "postgres")
            folder.parent.chmod(folder.parent.stat().st_mode | 0o11)  # a temporary folder that it must traverse
        make = [str(find_program("initdb")), "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync"]
        subprocess.run(make, check=True, stdout=subprocess.DEVNULL, cwd=folder, **self.user())

    def command(self) -> list[str]:
        """See `Server`."""
        options = ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
        return [str(find_program("postgres")), "-D", str(self.folder / "data"), *options]

    def user(self) -> dict[str, Any]:
        """See `Server`."""
        return {"user": "postgres", "group": "postgres"} if os.getuid() == 0 else {}

    @property
    def url(self) -> str:
        """URL of the server."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"
