"""Tests of operation: one relay per store, new phones and tokens, reloading and pruning."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
import tomli_w
from click.testing import CliRunner

from dphmm import Limits, Session
from dphmm.cli import main
from dphmm.cli.console import show_log_messages
from dphmm.errors import ConfigurationError, OutputError, TimeOrderError
from dphmm.jobs import audit_session
from dphmm.jobs.model.loading import load_model
from dphmm.jobs.release import stored
from dphmm.jobs.release.stored import read_sessions
from dphmm.processes import ScriptlessProcess
from dphmm.release.database_backends import get_format
from dphmm.release.engine import ReleaseSettings
from dphmm.release.session_store import SessionStore
from dphmm.release.session_transfer import export_store, import_store
from dphmm.release.settings import Schedule
from dphmm.serve import RelayConfig, add_device, delivery, prune_relay, rotate_token, server, systemd
from dphmm.serve.server import WorkerSupervisor, configure_logging, find_relay, get_lock_path, lock_relay
from tests.serve.conftest import START, START_S, TOKEN, get_page_token, make_location, serve_relay, wait_for
from tests.serve.test_delivery import STEP, post
from tests.serve.test_endpoints import ANN, read_releases
from tests.serve.test_server import ROOT, is_there, post_fix, write_relay_file
from tests.sizes import choose_count, mark_slow

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}

# A relay ends within 5 seconds of processor time. The wait that it must not finish lasts two minutes or forever.
LIMIT_S = 45


@contextmanager
def run_relay(path, url, *more, start=("-m", "dphmm", "serve"), **environment):
    """Run the command, or another start of Python, and write its log to a file."""
    command = [sys.executable, *start, str(path), *more]
    with (
        path.with_suffix(".log").open("ab") as log,
        subprocess.Popen(command, env=ENVIRONMENT | environment, stderr=log) as process,
    ):
        try:
            wait_for(lambda: is_there(url) or process.poll() is not None, START_S)
            yield process
        finally:
            process.terminate()
            process.wait(60)


def format_devices_as_tables(path):
    """Return a relay's file with its devices and pages as tables, as written by --init."""
    keys = tomllib.loads(path.read_text())
    entries = [
        f'[[{name}]]\nuser = "{entry["user"]}"\ntoken = "{entry["token"]}"\n'
        for name in ("device", "page")
        for entry in keys.pop(name, [])
    ]
    return tomli_w.dumps(keys) + "".join(entries)


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.mark.slow
def test_session_file_is_served_by_one_relay_only(model, tmp_path):
    path, url = write_relay_file(tmp_path, model, str(tmp_path / "users.db"))
    with run_relay(path, url) as process:
        done = run("serve", path)
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
        assert f"is served by another relay, process {process.pid}" in done.stderr
        limits = Path(f"/proc/{process.pid}/limits").read_text()
        assert re.search(r"Max core file size +0 +0 ", limits), "a core dump would contain true locations"
    with lock_relay(RelayConfig.read(path)):  # available again
        assert find_relay(RelayConfig.read(path))[0] == os.getpid()
    with pytest.raises(ConfigurationError, match="no running relay holds"):
        find_relay(RelayConfig.read(path))


SERVER = "postgresql://ann@db.example/relay"


def test_store_has_one_lock_by_any_path(config, tmp_path, monkeypatch):
    (tmp_path / "data").mkdir()
    store = tmp_path / "data" / "users.db"
    store.touch()
    (tmp_path / "link.db").symlink_to(store)
    (tmp_path / "folder").symlink_to(tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    paths = [store, "link.db", "folder/users.db", "data/../data/users.db", "data/users.db"]
    assert {get_lock_path(config(store=str(path))) for path in paths} == {tmp_path / "data" / "users.db.lock"}
    again = lock_relay(config(store="link.db"))
    with lock_relay(config(store=str(store))), pytest.raises(ConfigurationError, match="served by another"), again:
        pass


@pytest.mark.parametrize("make_link", [os.symlink, os.link], ids=["symbolic link", "hard link"])
@pytest.mark.parametrize("store", ["users.db", SERVER])
def test_linked_lock_file_is_not_followed(config, tmp_path, monkeypatch, make_link, store):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    settings = config(store=store if store == SERVER else str(tmp_path / store))
    victim = tmp_path / "victim"
    victim.write_text("4242")
    make_link(victim, get_lock_path(settings))
    with pytest.raises(OutputError, match=r"\.lock cannot be written"), lock_relay(settings):
        pass
    with pytest.raises(ConfigurationError, match="no running relay holds"):
        find_relay(settings)
    assert victim.read_text() == "4242"


def test_lock_file_on_a_full_disk_is_named(config, tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(server.os, "pwrite", fail)
    with (
        pytest.raises(OutputError, match=r"users\.db\.lock cannot be written \(No space left on device\)"),
        lock_relay(config()),
    ):
        pass


def test_lock_of_database_server_is_in_a_private_folder(config, tmp_path, monkeypatch):
    settings = config(store=SERVER, listen="127.0.0.1:8787")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    monkeypatch.setenv("RUNTIME_DIRECTORY", "/run/dphmm:/run/other")
    assert get_lock_path(settings) == Path("/run/dphmm/dphmm-relay-8787.lock")
    monkeypatch.delenv("RUNTIME_DIRECTORY")
    assert get_lock_path(settings) == Path("/run/user/7/dphmm-relay-8787.lock")
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    folder = get_lock_path(settings).parent
    assert (folder.parent, folder.stat().st_mode & 0o777) == (tmp_path, 0o700)
    folder.chmod(0o777)
    with pytest.raises(OutputError, match="must be a folder that only this user can write"):
        get_lock_path(settings)
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(OutputError, match="must be a folder that only this user can write"):
        get_lock_path(settings)


@pytest.mark.parametrize("content", ["", "-1", "1 2", "x"])
def test_number_of_another_users_process_is_refused(config, monkeypatch, content):
    """The owner of a lock file must not make root signal any process."""
    settings = config()
    with lock_relay(settings):
        get_lock_path(settings).write_text(content)
        with pytest.raises(ConfigurationError, match="must contain a process of its owner"):
            find_relay(settings)
        get_lock_path(settings).write_text(str(os.getpid()))
        assert find_relay(settings)[0] == os.getpid()
        monkeypatch.setattr(server, "_get_process_owner", lambda _: os.getuid() + 1)
        with pytest.raises(ConfigurationError, match="must contain a process of its owner"):
            find_relay(settings)


@contextmanager
def receive_notifications(address):
    """Receive the lines that a relay sends to its service manager, at all times.

    The system queues ten messages of one that does not read, and the relay drops later ones.
    """
    lines = []

    def receive():
        while message := manager.recv(4096):
            lines.extend(message.decode().splitlines())

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address)
        reader = threading.Thread(target=receive, daemon=True)
        reader.start()
        try:
            yield lines
        finally:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
                last.sendto(b"", address)
            reader.join()


@pytest.mark.slow
def test_relay_is_not_reloaded_while_its_store_accepts_no_release(model, tmp_path):
    store = tmp_path / "users.db"
    path, url = write_relay_file(tmp_path, model, str(store))

    def post_location():
        return httpx.post(f"{url}/owntracks", json=make_location(), auth=("ann", TOKEN["ann"]), timeout=60).status_code

    with run_relay(path, url) as process:
        store.rename(tmp_path / "elsewhere")
        os.kill(process.pid, signal.SIGHUP)
        wait_for(lambda: "configuration: the store accepts no release" in path.with_suffix(".log").read_text())
        assert post_location() == 503
        assert not store.exists(), "no empty store takes its place"
        (tmp_path / "elsewhere").rename(store)
        assert post_location() == 200
        assert process.poll() is None
    assert len(read_releases(store)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, mark_slow(2)])
def test_device_is_added_token_rotated_and_relay_reloaded_while_running(model, tmp_path, request, workers):
    store = request.getfixturevalue("postgres") if workers > 1 else str(tmp_path / "users.db")
    path, url = write_relay_file(tmp_path, model, store)
    path.write_text("# devices\n" + format_devices_as_tables(path))

    def post(**what):
        """Return the status, or None if a replaced worker closed the connection."""
        try:
            return httpx.post(**what, timeout=60, verify=False).status_code
        except httpx.TransportError:
            return None

    def post_as(token, user="ann"):
        return post(url=f"{url}/owntracks", json=make_location(), auth=(user, token))

    supervised = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "2000000"}
    with (
        receive_notifications(supervised["NOTIFY_SOCKET"]) as notified,
        run_relay(path, url, "--workers", str(workers), **supervised) as process,
    ):
        wait_for(lambda: "WATCHDOG=1" in notified)
        assert notified[0] == "READY=1"
        done = run("serve", "add-device", path, "zoë", "--url", "https://relay.example/")
        assert "https://relay.example/owntracks, user zoë, password" in done.output
        zoe = done.output.partition("access token ")[2].split()[0]
        point = {"time": "2024-03-07T09:00:00Z", "latitude": 45, "longitude": -30}
        posted = {"url": f"{url}/fix", "json": point, "headers": {"Authorization": f"Bearer {zoe}"}}
        assert post(**posted) == 401
        zoe_page = done.output.partition("page token ")[2].split()[0]
        done = run("serve", "rotate", path, "ann", "--page")
        ann_page = done.output.partition("page token ")[2].split()[0]
        assert "access token" not in done.output
        old = TOKEN["ann"]
        new = run("serve", "rotate", path, "ann").output.partition("access token ")[2].split()[0]
        assert post_as(old) == 200
        assert run("serve", "reload", path).exit_code == 0
        # Workers are replaced one after another, and any of them may answer.
        wait_for(lambda: all(post_as(old) == 401 and post(**posted) == 200 for _ in range(8)), START_S)
        wait_for(lambda: post_as(new) == 200)
        wait_for(lambda: notified.count("READY=1") == 2, 60)
        assert {"RELOADING=1"} <= set(notified[: len(notified) - notified[::-1].index("READY=1")])
        for token, expected in ((zoe_page, 200), (ann_page, 200), (zoe, 401), (new, 401), (get_page_token("ann"), 401)):
            assert post(url=f"{url}/page/login", json={"token": token}) == expected
        good = path.read_text()
        path.write_text(good.replace("utility:1km", "utility:2km"))
        done = run("serve", "reload", path)
        assert (done.exit_code, "--accept-changes" in done.stderr) == (2, True)
        path.write_text(good + "[[recipient]]\n")
        os.kill(find_relay(RelayConfig.read(write_copy(tmp_path, good)))[0], signal.SIGHUP)
        wait_for(
            lambda: "the relay continues with its previous configuration" in path.with_suffix(".log").read_text(), 60
        )
        wait_for(lambda: post_as(new) == 200)  # an invalid file changes nothing
        process.terminate()
        wait_for(lambda: "STOPPING=1" in notified)
    assert good.startswith("# devices\n")
    assert path.stat().st_mode & 0o777 == 0o600 or path.read_text() != good


@pytest.mark.parametrize("where", ["file", "postgres"])
@pytest.mark.parametrize("changed", ["listen", "store", "accept", None])
def test_reload_that_the_relay_would_refuse_is_refused_before_its_signal(
    model, tmp_path, request, monkeypatch, where, changed
):
    if changed == "store" and where == "file":
        pytest.skip("another file has another lock")
    store = request.getfixturevalue("postgres") if where == "postgres" else str(tmp_path / "users.db")
    path, _ = write_relay_file(tmp_path, model, store)
    host, port = RelayConfig.read(path).address
    SessionStore(store).close()
    signals = []
    monkeypatch.setattr(server.os, "kill", lambda *arguments: signals.append(arguments))
    with lock_relay(RelayConfig.read(path)):
        keys = tomllib.loads(path.read_text())
        if changed == "listen":
            keys["listen"] = f"0.0.0.0:{port}" if where == "postgres" else f"{host}:{port % 65535 + 1}"
        elif changed == "store":
            keys["store"] += "&application_name=other"
        path.write_text(tomli_w.dumps(keys | {"preferred_silence_seconds": 60}))
        done = run("serve", "reload", path, *(["--accept-changes"] if changed == "accept" else []))
    if changed is None:
        assert (done.exit_code, signals) == (0, [(os.getpid(), signal.SIGHUP)]), done.stderr
        return
    assert (done.exit_code, signals, len(done.stderr.splitlines())) == (2, [], 1)
    assert (
        "--accept-changes requires a relay that was started with it"
        if changed == "accept"
        else "listen and store must not change while the relay runs; restart it"
    ) in done.stderr


@pytest.mark.parametrize("path_kind", ["copy", "link", "absolute path"])
def test_reload_of_another_file_than_the_relay_reads_is_refused(model, tmp_path, monkeypatch, path_kind):
    path, _ = write_relay_file(tmp_path, model, str(tmp_path / "users.db"))
    SessionStore(str(tmp_path / "users.db")).close()
    signals = []
    monkeypatch.setattr(server.os, "kill", lambda *arguments: signals.append(arguments))
    monkeypatch.chdir(tmp_path)
    started = path.rename(tmp_path / "zoë.toml").relative_to(tmp_path)
    other = {"copy": Path("copy.toml"), "link": Path("link.toml"), "absolute path": started.absolute()}[path_kind]
    if path_kind == "copy":
        other.write_bytes(started.read_bytes())
    elif path_kind == "link":
        other.symlink_to(started)
    with lock_relay(RelayConfig.read(started), path=started):
        done = run("serve", "reload", other)
    if path_kind != "copy":
        assert (done.exit_code, signals) == (0, [(os.getpid(), signal.SIGHUP)]), done.stderr
        return
    assert (done.exit_code, signals, len(done.stderr.splitlines())) == (2, [], 1)
    assert f"was started with another file, {started.absolute()}, which" in done.stderr


def test_reload_does_not_need_the_variables_of_the_relay(model, tmp_path, monkeypatch, caplog):
    path, _ = write_relay_file(tmp_path, model, str(tmp_path / "users.db"))
    SessionStore(str(tmp_path / "users.db")).close()
    signals = []
    monkeypatch.setattr(server.os, "kill", lambda *arguments: signals.append(arguments))
    monkeypatch.delenv("DPHMM_TEST_KEY", raising=False)
    with lock_relay(RelayConfig.read(path)):
        keys = {
            "name": "family",
            "kind": "webhook",
            "url": "http://127.0.0.1:1/",
            "headers": {"A": "env:DPHMM_TEST_KEY"},
        }
        path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"recipient": [keys]}))
        done = run("serve", "reload", path)
    assert (done.exit_code, signals) == (0, [(os.getpid(), signal.SIGHUP)]), done.stderr
    config = RelayConfig.read(path)
    assert not server._is_servable(path, config, False)  # what the relay does at the signal, with its own variables
    assert "the relay continues with its previous configuration: env:DPHMM_TEST_KEY: the environment" in caplog.text
    monkeypatch.setenv("DPHMM_TEST_KEY", "secret")
    assert server._is_servable(path, config, False)


@pytest.mark.parametrize("workers", [1, 2])
def test_missing_variable_is_named_before_the_relay_starts(model, tmp_path, request, workers, monkeypatch):
    store = request.getfixturevalue("postgres") if workers > 1 else str(tmp_path / "users.db")
    path, _ = write_relay_file(tmp_path, model, store)
    monkeypatch.delenv("DPHMM_TEST_KEY", raising=False)
    headers = {"A": "env:DPHMM_TEST_KEY"}
    recipient = {"name": "family", "kind": "webhook", "url": "http://127.0.0.1:1/", "headers": headers}
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"recipient": [recipient]}))
    done = run("serve", path, "--workers", workers)
    message = "Error: env:DPHMM_TEST_KEY: the environment variable is not set; set it"
    assert (done.exit_code, done.stderr.splitlines()) == (2, [message])
    assert [file.name for file in tmp_path.iterdir() if ".db" in file.name] == []


@pytest.mark.slow
@pytest.mark.parametrize("where", ["file", "postgres"])
def test_port_in_use_is_refused_with_its_address(model, tmp_path, request, where):
    store = request.getfixturevalue("postgres") if where == "postgres" else str(tmp_path / "users.db")
    path, url = write_relay_file(tmp_path, model, store)
    address = url.removeprefix("http://")
    workers = ["--workers", "2"] if where == "postgres" else []
    with socket.create_server(RelayConfig.read(path).address):
        command = [sys.executable, "-m", "dphmm", "serve", str(path), *workers]
        done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    message = f"Error: listen must be an address and a free port of this machine, got {address}; see the log above"
    assert done.stderr.splitlines()[-1] == message


def test_warning_of_the_command_is_logged_once(monkeypatch, capfd):
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers)
    monkeypatch.setattr(root, "level", root.level)
    with show_log_messages():
        configure_logging()
        logging.getLogger("dphmm.serve.delivery").warning("the broker is away")
    assert capfd.readouterr().err.count("the broker is away") == 1


@pytest.mark.parametrize("where", ["file", "postgres"])
@pytest.mark.parametrize("words", [("prune", "--older", "90d"), ("confirm-clock",)])
def test_commands_for_a_store_do_not_create_one(model, tmp_path, request, where, words):
    store = request.getfixturevalue("postgres") if where == "postgres" else str(tmp_path / "users.db")
    path, _ = write_relay_file(tmp_path, model, store)
    done = run("serve", words[0], path, *words[1:])
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert ("contains no sessions" if where == "postgres" else f"{store}: must exist") in done.stderr
    if where == "file":
        assert not Path(store).exists()
    SessionStore(store).close()
    assert run("serve", words[0], path, *words[1:]).exit_code == 0


@pytest.mark.slow
def test_relay_of_script_is_reloaded_without_script(model, tmp_path):
    path, url = write_relay_file(tmp_path, model, str(tmp_path / "users.db"))
    path.write_text(format_devices_as_tables(path))
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom dphmm.serve import serve\n"
        "open(sys.argv[1] + '.runs', 'a').write('run ')\nserve(sys.argv[1])\n"
    )
    with run_relay(path, url, start=[str(script)]):
        new = run("serve", "rotate", path, "ann").output.partition("access token ")[2].split()[0]
        assert run("serve", "reload", path).exit_code == 0

        def is_accepted():
            try:
                return post_fix(url, make_location(), ("ann", new)).status_code == 200
            except httpx.TransportError:  # closed by the reload
                return False

        wait_for(is_accepted, START_S)
    assert (tmp_path / "relay.toml.runs").read_text() == "run "


@pytest.mark.slow
def test_relay_reloaded_while_starting_continues_with_last_file(model, tmp_path):
    path, url = write_relay_file(tmp_path, model, str(tmp_path / "users.db"))
    path.write_text(format_devices_as_tables(path))
    with run_relay(path, url):
        process = find_relay(RelayConfig.read(path))[0]
        for _ in range(choose_count(8, 5)):
            new = run("serve", "rotate", path, "ann").output.partition("access token ")[2].split()[0]
            os.kill(process, signal.SIGHUP)
            time.sleep(0.2)

        def is_accepted():
            try:
                return post_fix(url, make_location(), ("ann", new)).status_code == 200
            except httpx.TransportError:  # closed by a reload: phones post again
                return False

        wait_for(is_accepted, START_S)
        assert find_relay(RelayConfig.read(path))[0] == process


def write_copy(folder, text):
    path = folder / "as_it_was.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "model"),
        ('model = "m"\nstore = "s"\ndevice = [{user = "ann", token = "%s"}]\n', "by hand"),
    ],
)
def test_file_in_other_layout_is_left_unchanged(tmp_path, text, message):
    path = tmp_path / "relay.toml"
    path.write_text(text % ("a" * 40) if text else text)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=message):
        add_device(path, "bob")
    assert path.read_bytes() == before
    with pytest.raises(ConfigurationError):
        add_device(path, "a/b")


def write_file_for_ann(path, **keys):
    path.write_text(tomli_w.dumps({"model": "m", "store": "s", **keys, "device": [{"user": "ann", "token": "a" * 40}]}))
    path.write_text(format_devices_as_tables(path))


@pytest.mark.parametrize(
    ("keys", "url", "address", "is_reachable"),
    [
        ({}, None, "http://127.0.0.1:8787", False),
        ({"listen": "127.0.0.1:9001"}, None, "http://127.0.0.1:9001", False),
        ({"listen": "0.0.0.0:9001"}, None, "http://0.0.0.0:9001", False),
        ({"listen": "[::1]:9001"}, None, "http://[::1]:9001", False),
        ({"listen": "localhost:9001"}, None, "http://localhost:9001", False),
        ({"listen": "192.0.2.7:9001"}, None, "http://192.0.2.7:9001", True),
        ({"listen": "127.0.0.1:9001", "url": "https://relay.example/"}, None, "https://relay.example", True),
        ({"url": "https://relay.example"}, "https://other.example", "https://other.example", True),
        ({"url": "https://relay.example"}, "http://127.0.0.1:7", "http://127.0.0.1:7", False),
    ],
)
def test_settings_of_apps_contain_address_of_file(tmp_path, keys, url, address, is_reachable):
    path = tmp_path / "relay.toml"
    write_file_for_ann(path, **keys)
    outputs = [
        add_device(path, "bob", url),
        rotate_token(path, "ann", url=url),
        rotate_token(path, "ann", url=url, page=True),
    ]
    for number, lines in enumerate(outputs):
        text = " ".join(lines)
        uses = r"(?:URL|receiver|server|webhook|POST|ann  +|bob  +) ?(https?://[^/\s]+)/"
        assert set(re.findall(uses, text)) == {address}
        assert (f"Phones cannot reach {address}: it is an address of this machine only." in text) != is_reachable
        assert ("QR code for OwnTracks:" in text) == (is_reachable and number < 2)


def test_invalid_address_raises_and_leaves_file_unchanged(tmp_path):
    path = tmp_path / "relay.toml"
    write_file_for_ann(path)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match="url"):
        add_device(path, "bob", "relay.example")
    assert path.read_bytes() == before


def test_ambiguous_device_raises_unless_numbered(tmp_path):
    path = tmp_path / "relay.toml"
    devices = [{"user": user, "token": user[0] * 40} for user in ("ann", "bob")]
    path.write_text(tomli_w.dumps({"model": "m", "store": "s", "device": devices}))
    path.write_text(format_devices_as_tables(path))
    add_device(path, "ann")
    for number, wanted in ((None, "2 devices"), (3, "2 devices")):
        with pytest.raises(ConfigurationError, match=wanted):
            rotate_token(path, "ann", number)
    with pytest.raises(ConfigurationError, match="0 devices"):
        rotate_token(path, "eve")
    before = [device.token for device in RelayConfig.read(path).devices]
    rotate_token(path, "ann", 1)
    after = [device.token for device in RelayConfig.read(path).devices]
    assert [token_before == other for token_before, other in zip(before, after, strict=True)] == [False, True, True]


@pytest.mark.slow
def test_missing_environment_variables_raise_at_start(config, inbox, monkeypatch):
    keys = {"name": "family", "kind": "webhook", "url": inbox.url, "headers": {"Authorization": "env:DPHMM_TEST_KEY"}}
    for changes in ({"recipient": [keys]}, {"mqtt": {"url": "mqtt://127.0.0.1", "password": "env:DPHMM_TEST_KEY"}}):
        monkeypatch.delenv("DPHMM_TEST_KEY", raising=False)
        with pytest.raises(ConfigurationError, match="env:DPHMM_TEST_KEY"):
            serve_relay(config(**changes)).__enter__()
    monkeypatch.setenv("DPHMM_TEST_KEY", "k")
    with serve_relay(config(recipient=[keys])) as client:
        client.post("/owntracks", json=make_location(), auth=ANN)
        wait_for(lambda: inbox.messages)
    assert inbox.messages[0][1]["authorization"] == "k"


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("Authorization", "Bearer é", "header Authorization must be printable ASCII"),
        ("Authorization", "Bearer k\n", "header Authorization must be printable ASCII"),
        ("Author ization", "k", "headers must have names of letters, digits and hyphens, got 'Author ization'"),
    ],
)
def test_headers_that_cannot_be_sent_raise_at_start(config, tmp_path, monkeypatch, name, value, wanted):
    keys = {"name": "family", "kind": "webhook", "url": "https://a.example", "headers": {name: value}}
    path = tmp_path / "relay.toml"
    path.write_text(tomli_w.dumps({"model": "model.npz", "store": "users.db", "recipient": [keys]}))
    with pytest.raises(ConfigurationError, match=wanted) as refused:
        RelayConfig.read(path)
    if name == "Authorization":
        assert "Bearer" not in str(refused.value)
        monkeypatch.setenv("DPHMM_TEST_KEY", value)
        settings = config(recipient=[keys | {"headers": {name: "env:DPHMM_TEST_KEY"}}])
        with pytest.raises(ConfigurationError, match="env:DPHMM_TEST_KEY: the environment variable must be printable"):
            settings.check_environment()
    assert config(recipient=[keys | {"kind": "mqtt", "url": "mqtt://a.example", "headers": {"username": "é"}}])


# ---- old records -----------------------------------------------------------------------------------------------------


def test_page_changes_nothing_in_a_store_that_continues_elsewhere(config, inbox, tmp_path):
    """The store to which it was moved would not have the pause, the link or its end."""
    with serve_relay(config(recipient=[{"name": "family", "kind": "webhook", "url": inbox.url}])) as client:
        post(client, 0)
        client.post("/page/login", json={"token": get_page_token("ann")})
        headers = {"x-csrf-token": client.get("/page/state").json()["csrf"]}
        requests = {
            "pause": {"recipient": "family", "paused": True},
            "link": {"name": "Trip", "precision_m": 0, "ends": int(time.time()) + 999},
            "unlink": {"link": "link sha256:0"},
            "zones": {"zones": {"type": "FeatureCollection", "features": []}, "buffer_m": 0.0, "elsewhere": "policy"},
        }
        export_store(tmp_path / "users.db", tmp_path / "moved.export")
        for name, body in requests.items():
            assert client.post(f"/page/{name}", json=body, headers=headers).status_code == 503, name
        import_store(tmp_path / "moved.export", tmp_path / "users.db")
        for name, body in requests.items():
            assert client.post(f"/page/{name}", json=body, headers=headers).status_code == 200, name


def test_certificate_keeps_the_locks_of_the_running_relay(config, tmp_path):
    """Otherwise the next process that closes the file deletes its log with later releases."""
    store = tmp_path / "users.db"
    command = (
        "import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT COUNT(*) FROM record').fetchone())"
    )
    with serve_relay(config()) as client:
        post(client, 0)
        client.post("/page/login", json={"token": get_page_token("ann")})
        assert client.get("/page/proof").status_code == 200
        for count in (1, 2):
            other = subprocess.run([sys.executable, "-c", command, store], capture_output=True, text=True, check=True)
            assert int(other.stdout) == count
            post(client, count)


@pytest.mark.slow
@pytest.mark.parametrize("where", ["file", "server"])
def test_pruning_removes_old_records_and_keeps_guarantees_and_spent_epsilon(config, inbox, tmp_path, request, where):
    store = request.getfixturevalue("postgres") if where == "server" else str(tmp_path / "users.db")
    recipients = [
        {"name": "f", "kind": "webhook", "url": inbox.url},
        {"name": "g", "kind": "webhook", "url": inbox.url, "precision": "2km"},
    ]
    settings, day = config(store=store, recipient=recipients, limits={"window_epsilon": 3.0, "window_steps": 10}), 288
    path = tmp_path / "relay.toml"
    keys = {"model": settings.model, "store": store, "device": [{"user": u, "token": t} for u, t in TOKEN.items()]}
    path.write_text(tomli_w.dumps(keys))
    before_prune = {}
    with serve_relay(settings) as client:
        post(client, 0, 1, day + 2, day + 3)
        with SessionStore(store, readonly=True) as opened:
            number = opened.session("ann").number
        for name in ("before", "after"):
            if name == "after":
                lines = prune_relay(path, 86400)
                assert any(line == "ann: 2 releases with a record, 2 earlier ones without" for line in lines)
                assert prune_relay(path, 86400) == lines
            (seen,) = read_sessions(store, ("ann",))
            before_prune[name] = seen.to_dict()
        # Sums remain. Maxima that the removed records can exceed are not reported.
        assert before_prune["after"]["likelihood_ratio_total"] == before_prune["before"]["likelihood_ratio_total"]
        for maximum in ("max_constrained_epsilon", "likelihood_ratio_release", "likelihood_ratio_any_states"):
            assert before_prune["before"][maximum] is not None
            assert before_prune["after"][maximum] is None
        assert [seen["max_window_epsilon"] for seen in before_prune.values()] == [1.0, None]
        assert before_prune["after"]["epsilon"] == before_prune["before"]["epsilon"] == 2.0
        assert before_prune["after"]["constrained_epsilon"] == before_prune["before"]["constrained_epsilon"]
        post(client, 0, day + 3, day + 4)  # the running relay continues; pruned timesteps get no new release
        client.post("/page/login", json={"token": get_page_token("ann")})
        assert len(client.get("/page/trail").json()["locations"]) == 3
    with serve_relay(settings) as client:  # also after a restart with the remaining records
        post(client, day + 5)
        client.post("/page/login", json={"token": get_page_token("ann")})
        assert client.get("/page/state").json()["budget"]["spent"] == pytest.approx(3.0)
    left = read_releases(store) if where == "file" else None
    assert left is None or [release.slot - START // 300 for release in left] == [day + k for k in (2, 3, 4, 5)]
    with SessionStore(store, readonly=True) as opened:
        assert opened.get_pruned_costs(number).count == 2
        assert opened.progress(number).count == 6
    with pytest.raises(ConfigurationError, match=r"first 2 .*'ann'"):
        audit_session(store, settings.model)


@pytest.mark.slow
def test_page_of_new_recipient_opens_after_pruning(config, inbox, tmp_path):
    """All releases precede the recipient, so the page searches back to the first record."""
    recipients = [{"name": "f", "kind": "webhook", "url": inbox.url}]
    store = tmp_path / "users.db"
    with serve_relay(config()) as client:
        post(client, *range(0, 40 * 12, 12))
    with SessionStore(store) as opened:
        num_pruned = opened.prune(opened.session("ann"), 10**9, 300.0)
        assert 0 < num_pruned < 40
    with serve_relay(config(recipient=recipients)) as client:
        client.post("/page/login", json={"token": get_page_token("ann")})
        (recipient,) = client.get("/page/state").raise_for_status().json()["recipients"]
        assert recipient["last"] is None
        trail = client.get("/page/trail", params={"from": 1}).raise_for_status().json()
    assert [shown["number"] for shown in trail["locations"]] == list(range(num_pruned, 40))


@pytest.mark.slow
def test_windows_and_damage_are_detected_after_pruning(tmp_path, model):
    learned = load_model(model)
    settings = ReleaseSettings(
        policy="utility:1km", epsilon=0.5, schedule=Schedule(window_epsilon=30.0, window_seconds=3600)
    )
    path = tmp_path / "a.db"
    with Session.open(path, "ann", settings.engine(learned)) as session:
        for slot in range(0, 9 * 288, 144):
            session.release(3, slot)
        exact = session.account.epsilon, session.account.constrained_epsilon
    with SessionStore(path) as store:
        stored = store.session("ann")
        num_pruned = store.prune(stored, 10**9, 300.0)
        assert 0 < num_pruned < store.progress(stored.number).count
        kept = [release.slot for release in store.releases(stored.number)]
        assert kept[0] > kept[-1] - stored.max_window_steps(300.0) >= 0
        assert store.prune(stored, 10**9, 300.0) == num_pruned
    with Session.open(path, "ann", settings.engine(learned)) as session:
        assert (session.account.epsilon, session.account.constrained_epsilon) == exact
        assert len(session.releases()) == len(kept)
        with pytest.raises(TimeOrderError):
            session.release(3, 0)
        session.release(3, 9 * 288)
    with SessionStore(path) as store:
        store.database.execute("UPDATE record SET body = replace(body, '0.5', '0.6') WHERE number = ?", (num_pruned,))
        with pytest.raises(Exception, match="damaged"):
            list(store.releases(1))


def test_last_release_is_kept_for_predictions_after_pruning(tmp_path, model):
    learned = load_model(model)
    settings = ReleaseSettings(policy="utility:1km", epsilon=0.5)
    path = tmp_path / "a.db"
    engine, limits = settings.engine(learned), Limits(epsilon=1)
    with Session.open(path, "ann", engine, limits, predict_beyond_limits=True) as session:
        records = [session.release(3, slot) for slot in range(0, 9 * 288, 144)]
    assert [record.withheld for record in records] == [False] * 2 + [True] * 16
    with SessionStore(path) as store:
        stored = store.session("ann")
        assert store.prune(stored, 10**9, 300.0) == 1
        ((query,),) = store.database.execute("SELECT DISTINCT query FROM record")
        assert store.find_last_draw_slot(stored.number, query, 0, 18) == 144


@pytest.mark.parametrize("workers", [1, 2])
def test_store_of_other_format_raises_in_one_line(model, tmp_path, request, workers):
    store = request.getfixturevalue("postgres") if workers > 1 else str(tmp_path / "users.db")
    path, url = write_relay_file(tmp_path, model, store)
    with SessionStore(store) as opened:
        change = "PRAGMA user_version={}" if workers == 1 else "UPDATE dphmm_format SET format = {}"
        opened.database.execute(change.format(get_format() + 1))
    done = run("serve", path, "--workers", workers)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    latest = (
        f"must be of format {get_format()} or earlier, got {get_format() + 1}; use the version of dphmm that wrote it"
    )
    assert latest in done.stderr
    assert not is_there(url)


# ---- workers ---------------------------------------------------------------------------------------------------------


@contextmanager
def restore_signals():
    """Restore the handlers of signals that a supervisor sets."""
    kept = {
        signal_number: signal.getsignal(signal_number)
        for signal_number in signal.Signals
        if signal_number not in (signal.SIGKILL, signal.SIGSTOP)
    }
    try:
        yield
    finally:
        for signal_number, handler in kept.items():
            if handler is not None:
                signal.signal(signal_number, handler)


@pytest.mark.slow
@pytest.mark.parametrize("is_stopped", [False, True], ids=["reload ends", "stopped"])
def test_reload_of_workers_that_start_slowly_delays_nothing(tmp_path, monkeypatch, is_stopped):
    """Meanwhile the watchdog is fed, a dead worker is replaced, and a stop is immediate."""
    import uvicorn

    waits = tmp_path / "wait"
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(START_S)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("WAIT_WHILE", str(waits))
    config = uvicorn.Config(
        "tests.serve.slow_start:app", factory=True, port=0, workers=2, log_config=None, lifespan="off",
        timeout_worker_healthcheck=120,
    )  # fmt: skip
    problems = []

    def wait_for_line(line):
        while line not in manager.recv(4096).decode().splitlines():
            continue

    def act(supervisor):
        wait_for(lambda: len(supervisor._served) == 2, START_S)
        first = [worker.pid for worker in supervisor.processes]
        waits.touch()
        supervisor.signal_queue.append(signal.SIGHUP)
        wait_for_line("RELOADING=1")
        manager.settimeout(10)
        wait_for_line("WATCHDOG=1")
        os.kill(first[1], signal.SIGKILL)
        wait_for(lambda: supervisor.processes[1].pid not in (first[1], None), 10)
        assert supervisor.processes[0].pid == first[0], "it serves until its successor does"
        if not is_stopped:
            waits.unlink()
            manager.settimeout(START_S)
            wait_for_line("READY=1")
            assert not {worker.pid for worker in supervisor.processes} & set(first)
            assert supervisor.processes[0].pid in supervisor._served, "a reload ends once a successor serves"
            # The worker in place of the killed one starts slowly, too. A reload does not wait for it.
            wait_for(lambda: supervisor._served == {worker.pid for worker in supervisor.processes}, START_S)
        supervisor.signal_queue.append(signal.SIGTERM)
        wait_for(supervisor.should_exit.is_set, 10)

    def act_and_end(supervisor):
        try:
            act(supervisor)
        except BaseException as problem:
            problems.append(problem)
        finally:
            supervisor.should_exit.set()

    with closing(manager), restore_signals(), config.bind_socket() as listening:
        supervisor = WorkerSupervisor(config, [listening])
        actor = threading.Thread(target=act_and_end, args=(supervisor,))
        actor.start()
        supervisor.run()
        actor.join()
    assert problems == []
    assert not any(worker.process.is_alive() for worker in supervisor.processes)


def test_reload_that_is_checked_while_the_relay_stops_does_not_restart_it(config, tmp_path, monkeypatch):
    hangups = []
    is_checked = threading.Event()

    class StoppedServer:
        """A server that is stopped while a reload is checked."""

        started, should_exit = True, False

        def __init__(self, *_):
            self.config = SimpleNamespace(bind_socket=lambda: listening)

        def run(self, sockets):
            hangups[0]()
            self.should_exit = True
            is_checked.set()
            for thread in threading.enumerate():
                if thread.name == "check":
                    thread.join(10)
            sockets[0].close()

    def check(*_):
        threading.current_thread().name = "check"
        return is_checked.wait(10)

    app = SimpleNamespace(state=SimpleNamespace(sessions=SimpleNamespace(is_store_available=None)))
    monkeypatch.setattr("dphmm.serve.endpoints.make_app", lambda *_: app)
    monkeypatch.setattr(server, "SupervisedServer", StoppedServer)
    monkeypatch.setattr(server, "_handle_hangup", hangups.append)
    monkeypatch.setattr(server, "_is_servable", check)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert not server._serve_in_process(tmp_path / "relay.toml", config(), False, threading.Event())


@pytest.mark.slow
def test_workers_that_die_before_serving_cause_error(tmp_path, monkeypatch, caplog):
    import uvicorn

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    config = uvicorn.Config("tests.serve.dying:app", factory=True, port=0, workers=2, log_config=None)
    with restore_signals(), config.bind_socket() as listening:
        supervisor = WorkerSupervisor(config, [listening])
        supervisor.run()
    assert supervisor.failed
    assert {type(worker.process) for worker in supervisor.processes} == {ScriptlessProcess}
    assert "no other is started" in caplog.text


@pytest.mark.slow
def test_workers_start_with_a_tenth_of_processor_time(model, tmp_path, postgres):
    """Workers are stopped nine tenths of the time.

    With uvicorn's timeout of five seconds they would be ended while they import.
    """
    path, url = write_relay_file(tmp_path, model, postgres)
    with run_relay_slowly(path, url) as (process, slowly):
        began = time.monotonic()
        # A short timeout leaves the workers little time between two stops. A busy machine may need a longer one.
        while not is_ready(url, 0.2 if time.monotonic() < began + 100 else 5):
            assert process.poll() is None, path.with_suffix(".log").read_text()
            assert time.monotonic() < began + 200, path.with_suffix(".log").read_text()
            slowly()
        assert post_fix(url, make_location()).status_code == 200
    logged = path.with_suffix(".log").read_text()
    assert "ended" not in logged
    assert len(read_releases(postgres)) == 1


def is_ready(url, timeout):
    try:
        return httpx.get(f"{url}/ready", timeout=timeout, verify=False).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def run_relay_slowly(path, url):
    command = [sys.executable, "-m", "dphmm", "serve", str(path), "--workers", "2"]
    with path.with_suffix(".log").open("wb") as log, subprocess.Popen(command, env=ENVIRONMENT, stderr=log) as process:

        def list_workers():
            try:
                children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                return [int(child) for child in children]
            except OSError:
                return []

        def send_signal(sig):
            for worker in list_workers():
                try:
                    os.kill(worker, sig)
                except ProcessLookupError:
                    continue

        def slow_down():
            send_signal(signal.SIGSTOP)
            time.sleep(0.45)
            send_signal(signal.SIGCONT)
            time.sleep(0.05)

        try:
            yield process, slow_down
        finally:
            send_signal(signal.SIGCONT)
            process.terminate()
            process.wait(60)


@contextmanager
def serve_silently():
    """Accept connections and never answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "number"),
    [
        ("mqtt", signal.SIGTERM),
        mark_slow("mqtts", signal.SIGHUP),
        mark_slow("mqtts", signal.SIGTERM),
        mark_slow("https", signal.SIGHUP),
    ],
)
def test_relay_stops_and_reloads_in_time_with_silent_recipients(model, tmp_path, broker, number, scheme):
    """Stop or reload a relay while messages wait for a recipient that does not answer."""
    path, url = write_relay_file(tmp_path, model, str(tmp_path / "users.db"))
    with serve_silently() as address:
        kind = "webhook" if scheme == "https" else "mqtt"
        recipients = [
            {"name": "silent", "kind": kind, "url": f"{scheme}://{address}"},
            {"name": "good", "kind": "mqtt", "url": broker},
        ]
        path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | {"recipient": recipients}))
        for step in range(choose_count(2, 1)):
            with run_relay(path, url) as process:
                for later in range(3):
                    fix = make_location(START + STEP * (3 * step + later))
                    assert post_fix(url, fix).status_code == 200
                time.sleep(0.5)  # connections to recipients begin
                began = time.monotonic()
                process.send_signal(number)
                if number == signal.SIGTERM:
                    process.wait(60)
                else:
                    wait_for(lambda: "DPHMM_RELAY_SOCKET=" in read_environment(process.pid))
                assert time.monotonic() - began < LIMIT_S
    assert "Exception" not in path.with_suffix(".log").read_text()


HANGING_STORE = """
import sys, time
from dphmm.serve import serve, sessions
sessions.Sessions.close = lambda _: time.sleep(120)
serve(sys.argv[2])
"""


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [[signal.SIGTERM], [signal.SIGHUP], [signal.SIGHUP, signal.SIGTERM]])
def test_relay_ends_in_time_although_the_store_hangs(model, tmp_path, numbers):
    path, url = write_relay_file(tmp_path, model, str(tmp_path / "users.db"))
    command = [sys.executable, "-c", HANGING_STORE, "serve", str(path)]
    with subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: is_there(url), START_S)
            began = time.monotonic()
            for number in numbers:
                process.send_signal(number)
                if number == signal.SIGHUP and len(numbers) > 1:
                    time.sleep(3)  # the reload is checked and begins to stop the relay
            if numbers == [signal.SIGHUP]:
                wait_for(lambda: "DPHMM_RELAY_SOCKET=" in read_environment(process.pid))
                assert time.monotonic() - began < LIMIT_S
                assert httpx.get(f"{url}/health", timeout=60, verify=False).status_code == 200
                process.terminate()
            process.wait(60)
            assert numbers == [signal.SIGHUP] or time.monotonic() - began < LIMIT_S
        finally:
            process.kill()
        assert "the relay did not end in time" in process.stderr.read()


def read_environment(process):
    with suppress(ProcessLookupError):  # a thread that replaces the program takes over the number of the first thread
        return Path(f"/proc/{process}/environ").read_bytes().decode()
    return ""


@pytest.mark.parametrize(
    "answers", [True, False, ZeroDivisionError, None], ids=["available", "unavailable", "failing", "hanging"]
)
def test_watchdog_is_fed_only_while_the_store_answers(tmp_path, monkeypatch, answers):
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.setblocking(False)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    assert systemd.get_watchdog_interval() is None, "it concerns another process"
    monkeypatch.delenv("WATCHDOG_PID")

    async def ask():
        if answers is None:
            await asyncio.sleep(60)
        if answers is ZeroDivisionError:
            raise answers
        return answers

    async def feed():
        with suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await systemd.feed_watchdog(systemd.get_watchdog_interval(), ask)

    asyncio.run(feed())
    with closing(manager):
        if answers is None:
            with pytest.raises(BlockingIOError):
                manager.recv(4096)
        else:
            status = "" if answers is True else "the store accepts no release"
            for _ in range(2):
                assert manager.recv(4096).decode() == f"WATCHDOG=1\nSTATUS={status}"


def test_clock_is_kept_without_posts_until_it_jumps(config, tmp_path, clock, monkeypatch):
    monkeypatch.setattr(delivery, "POLL_INTERVAL_S", 0.01)

    def post_now():
        client.post("/page/login", json={"token": get_page_token("ann")}).raise_for_status()
        client.post("/owntracks", json=make_location(clock.at), auth=ANN).raise_for_status()
        return client.get("/page/state").json()["phone"]["outcome"]

    with serve_relay(config()) as client, SessionStore(tmp_path / "users.db", readonly=True) as store:
        assert post_now() == "released"
        for _ in range(2):
            clock.at += 20 * 86400
            wait_for(lambda: store.get_kept_clock() == clock.at)
        assert post_now() == "released"
        right = clock.at
        clock.at += 31 * 86400
        time.sleep(0.2)  # many polls
        assert post_now() == "clock"
        assert store.get_kept_clock() == right
        with SessionStore(tmp_path / "users.db") as other:
            other.keep_clock(clock.at)  # as confirm-clock does
        assert post_now() == "released"


@pytest.mark.slow
def test_clock_that_starts_in_a_wrong_year_blocks_no_user(model, tmp_path, clock, monkeypatch):
    """Start with a clock a year ahead, then with the right one, then after a long time off.

    The variant without the last time kept must release in the wrong year.
    """
    path, _ = write_relay_file(tmp_path, model, str(tmp_path / "users.db"))
    settings = RelayConfig.read(path)
    year = 365 * 86400
    month = 31 * 86400

    def post_at(second, settings=settings):
        with serve_relay(settings) as client:
            client.post("/page/login", json={"token": get_page_token("ann")}).raise_for_status()
            client.post("/owntracks", json=make_location(second), auth=ANN).raise_for_status()
            return client.get("/page/state").json()["phone"]["outcome"]

    clock.at = START
    assert post_at(START) == "released"
    clock.at = START + year
    assert post_at(START + year) == "clock"
    assert post_at(START + STEP) == "released", "a right time is accepted by a wrong clock"
    clock.at = START + 2 * STEP
    assert post_at(START + 2 * STEP) == "released"
    clock.at = START + month
    assert post_at(START + month) == "clock"
    assert run("serve", "confirm-clock", path).exit_code == 0
    assert post_at(START + month) == "released"
    clock.at = START + month + year
    with SessionStore(tmp_path / "users.db") as store:
        store.database.execute("DELETE FROM identity WHERE name = 'clock'")
    assert post_at(START + month + year) == "released"

    clock.at = START + month  # the user is in a wrong future now
    monkeypatch.setattr(stored, "clock", lambda: clock.at)
    assert post_at(START + month + STEP) == "late"
    done = run("session", "rewind", tmp_path / "users.db", "ann", "--model", model)
    assert done.exit_code == 0, done.output
    clock.at += 86400
    assert post_at(clock.at) == "released"
    values = [(release.slot, release.record) for release in read_releases(tmp_path / "users.db")]
    assert len(dict(values)) == len(values)

    new = settings.model_copy(update={"store": str(tmp_path / "new.db")})
    clock.at = START + year
    assert post_at(START, new) == "released", "the first start of a new store may have a wrong clock"
    clock.at = START + STEP
    assert post_at(START + STEP, new) == "released"
    clock.at = START + year
    assert post_at(START + year, new) == "clock", "only the time that agreed with a phone was kept"
