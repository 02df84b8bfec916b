"""What an operator does: one relay at a file, another phone, a new token, a changed file, old records removed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import tomllib
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import tomli_w
from click.testing import CliRunner

from dphmm import Session
from dphmm.cli import main
from dphmm.errors import ConfigurationError, TimeOrderError
from dphmm.jobs import audit_session
from dphmm.jobs.models import load_model
from dphmm.jobs.stored_releases import read_sessions
from dphmm.release.engine import ReleaseSettings
from dphmm.release.session_store import SessionStore
from dphmm.release.settings import Schedule
from dphmm.serve import RelayConfig, add_device, prune_relay, rotate_token
from dphmm.serve.server import Workers, only_relay, process_of
from tests.serve.conftest import START, TOKEN, location, relay, wait_for
from tests.serve.test_delivery import post
from tests.serve.test_endpoints import ANN, releases
from tests.serve.test_server import ROOT, is_there, relay_file

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}


@contextmanager
def started(path, url, *more):
    """The command itself, with what it logs in a file."""
    command = [sys.executable, "-m", "dphmm", "serve", str(path), *more]
    with path.with_suffix(".log").open("ab") as log, subprocess.Popen(command, env=ENVIRONMENT, stderr=log) as process:
        try:
            wait_for(lambda: is_there(url) or process.poll() is not None, 60)
            yield process
        finally:
            process.terminate()
            process.wait(30)


def with_tables(path):
    """A relay's file with its devices as tables, as --init and people write them."""
    keys = tomllib.loads(path.read_text())
    devices = [f'[[device]]\nuser = "{one["user"]}"\ntoken = "{one["token"]}"\n' for one in keys.pop("device")]
    return tomli_w.dumps(keys) + "".join(devices)


def run(*words):
    return CliRunner().invoke(main, [str(word) for word in words])


def test_a_file_of_sessions_has_one_relay(model, tmp_path):
    path, url = relay_file(tmp_path, model, str(tmp_path / "people.db"))
    with started(path, url) as process:
        done = run("serve", path)
        assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
        assert f"is served by another relay, process {process.pid}" in done.stderr
    with only_relay(RelayConfig.read(path)):  # free again
        assert process_of(RelayConfig.read(path)) == os.getpid()
    with pytest.raises(ConfigurationError, match="no relay holds"):
        process_of(RelayConfig.read(path))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_phone_is_added_a_token_rotated_and_the_relay_told_while_it_runs(model, tmp_path, request, workers):
    store = request.getfixturevalue("postgres") if workers > 1 else str(tmp_path / "people.db")
    path, url = relay_file(tmp_path, model, store)
    path.write_text("# whose phones post\n" + with_tables(path))

    def post(**what):
        """Return the status; None if the connection was closed, as by a worker that is replaced (phones post again)."""
        try:
            return httpx.post(**what, timeout=60).status_code
        except httpx.TransportError:
            return None

    def status(token, user="ann"):
        return post(url=f"{url}/owntracks", json=location(), auth=(user, token))

    with started(path, url, "--workers", str(workers)):
        done = run("serve", "add-device", path, "zoë", "--url", "https://relay.example/")
        assert "https://relay.example/owntracks, user zoë, password" in done.output
        zoe = done.output.partition("access token ")[2].split()[0]
        point = {"time": "2024-03-07T09:00:00Z", "latitude": 45, "longitude": -30}
        posted = {"url": f"{url}/fix", "json": point, "headers": {"Authorization": f"Bearer {zoe}"}}
        assert post(**posted) == 401
        old = TOKEN["ann"]
        new = run("serve", "rotate", path, "ann").output.partition("access token ")[2].split()[0]
        assert status(old) == 200
        assert run("serve", "reload", path).exit_code == 0
        # Of several workers one is replaced after another, and which of them answers is chance.
        wait_for(lambda: all(status(old) == 401 and post(**posted) == 200 for _ in range(8)), 90)
        wait_for(lambda: status(new) == 200)
        good = path.read_text()
        path.write_text(good.replace("utility:1km", "utility:2km"))
        done = run("serve", "reload", path)
        assert (done.exit_code, "--accept-changes" in done.stderr) == (2, True)
        path.write_text(good + "[[recipient]]\n")
        os.kill(process_of(RelayConfig.read(relay_file_of(tmp_path, good))), signal.SIGHUP)
        wait_for(lambda: "the relay goes on as it was" in path.with_suffix(".log").read_text(), 60)
        assert status(new) == 200  # a file that cannot be served changes nothing
    assert good.startswith("# whose phones post\n")
    assert path.stat().st_mode & 0o777 == 0o600 or path.read_text() != good


def test_a_relay_that_is_told_again_while_it_starts_goes_on_and_reads_the_last_file(model, tmp_path):
    path, url = relay_file(tmp_path, model, str(tmp_path / "people.db"))
    path.write_text(with_tables(path))
    with started(path, url):
        process = process_of(RelayConfig.read(path))
        for _ in range(12):
            new = run("serve", "rotate", path, "ann").output.partition("access token ")[2].split()[0]
            os.kill(process, signal.SIGHUP)
            time.sleep(0.2)

        def taken():
            try:
                return httpx.post(f"{url}/owntracks", json=location(), auth=("ann", new), timeout=60).status_code == 200
            except httpx.TransportError:  # closed by a reload: phones post again
                return False

        wait_for(taken, 90)
        assert process_of(RelayConfig.read(path)) == process


def relay_file_of(folder, text):
    path = folder / "as_it_was.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "model"),
        ('model = "m"\nstore = "s"\ndevice = [{user = "ann", token = "%s"}]\n', "by hand"),
    ],
)
def test_a_file_that_is_written_otherwise_is_left_as_it_is(tmp_path, text, said):
    path = tmp_path / "relay.toml"
    path.write_text(text % ("a" * 40) if text else text)
    before = path.read_bytes()
    with pytest.raises(ConfigurationError, match=said):
        add_device(path, "bob")
    assert path.read_bytes() == before
    with pytest.raises(ConfigurationError):
        add_device(path, "a/b")


def test_of_several_devices_one_is_named(tmp_path):
    path = tmp_path / "relay.toml"
    devices = [{"user": user, "token": user[0] * 40} for user in ("ann", "bob")]
    path.write_text(tomli_w.dumps({"model": "m", "store": "s", "device": devices}))
    path.write_text(with_tables(path))
    add_device(path, "ann")
    for number, wanted in ((None, "2 devices"), (3, "2 devices")):
        with pytest.raises(ConfigurationError, match=wanted):
            rotate_token(path, "ann", number)
    with pytest.raises(ConfigurationError, match="0 devices"):
        rotate_token(path, "eve")
    before = [one.token for one in RelayConfig.read(path).devices]
    rotate_token(path, "ann", 1)
    after = [one.token for one in RelayConfig.read(path).devices]
    assert [one == other for one, other in zip(before, after, strict=True)] == [False, True, True]


def test_variables_that_are_not_set_are_refused_at_start(config, inbox, monkeypatch):
    keys = {"name": "family", "kind": "webhook", "url": inbox.url, "headers": {"Authorization": "env:DPHMM_TEST_KEY"}}
    for changes in ({"recipient": [keys]}, {"mqtt": {"url": "mqtt://127.0.0.1", "password": "env:DPHMM_TEST_KEY"}}):
        monkeypatch.delenv("DPHMM_TEST_KEY", raising=False)
        with pytest.raises(ConfigurationError, match="env:DPHMM_TEST_KEY, which is not set"):
            relay(config(**changes)).__enter__()
    monkeypatch.setenv("DPHMM_TEST_KEY", "k")
    with relay(config(recipient=[keys])) as client:
        client.post("/owntracks", json=location(), auth=ANN)
        wait_for(lambda: inbox.messages)
    assert inbox.messages[0][1]["authorization"] == "k"


# ---- old records -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["file", "server"])
def test_old_records_go_and_what_was_promised_and_spent_stays(config, inbox, tmp_path, request, where):
    store = request.getfixturevalue("postgres") if where == "server" else str(tmp_path / "people.db")
    recipients = [
        {"name": "f", "kind": "webhook", "url": inbox.url},
        {"name": "g", "kind": "webhook", "url": inbox.url, "precision": "2km"},
    ]
    made, day = config(store=store, recipient=recipients, limits={"window_epsilon": 3.0, "window_steps": 10}), 288
    path = tmp_path / "relay.toml"
    keys = {"model": made.model, "store": store, "device": [{"user": u, "token": t} for u, t in TOKEN.items()]}
    path.write_text(tomli_w.dumps(keys))
    before_prune = {}
    with relay(made) as client:
        post(client, 0, 1, day + 2, day + 3)
        with SessionStore(store, readonly=True) as opened:
            number = opened.session("ann").number
        for name in ("before", "after"):
            if name == "after":
                lines = prune_relay(path, 86400)
                assert any(line == "ann: 2 releases have a record, 2 earlier ones have none" for line in lines)
                assert prune_relay(path, 86400) == lines
            (seen,) = read_sessions(store, ("ann",))
            before_prune[name] = seen.cost()
        assert before_prune["after"]["epsilon"] == before_prune["before"]["epsilon"] == 2.0
        assert before_prune["after"]["constrained_epsilon"] == before_prune["before"]["constrained_epsilon"]
        post(client, 0, day + 3, day + 4)  # the relay that runs goes on; what was pruned has no other release
        client.post("/page/login", json={"token": TOKEN["ann"]})
        assert len(client.get("/page/trail").json()["places"]) == 3
    with relay(made) as client:  # and one that begins with what is left
        post(client, day + 5)
        client.post("/page/login", json={"token": TOKEN["ann"]})
        assert client.get("/page/state").json()["budget"]["spent"] == pytest.approx(3.0)
    left = releases(store) if where == "file" else None
    assert left is None or [one.slot - START // 300 for one in left] == [day + k for k in (2, 3, 4, 5)]
    with SessionStore(store, readonly=True) as opened:
        assert opened.pruned(number).count == 2
        assert opened.progress(number).count == 6
    with pytest.raises(ConfigurationError, match="first 2 releases of session 'ann' were pruned"):
        audit_session(store, made.model)


def test_windows_and_damage_are_seen_across_what_was_removed(tmp_path, model):
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
        gone = store.prune(stored, 10**9, 300.0)
        assert 0 < gone < store.progress(stored.number).count
        kept = [one.slot for one in store.releases(stored.number)]
        assert kept[0] > kept[-1] - stored.longest_window(300.0) >= 0
        assert store.prune(stored, 10**9, 300.0) == gone
    with Session.open(path, "ann", settings.engine(learned)) as session:
        assert (session.account.epsilon, session.account.constrained_epsilon) == exact
        assert len(session.releases()) == len(kept)
        with pytest.raises(TimeOrderError):
            session.release(3, 0)
        session.release(3, 9 * 288)
    with SessionStore(path) as store:
        store.database.execute("UPDATE record SET body = replace(body, '0.5', '0.6') WHERE number = ?", (gone,))
        with pytest.raises(Exception, match="damaged"):
            list(store.releases(1))


@pytest.mark.parametrize("workers", [1, 2])
def test_a_store_of_another_format_is_refused_in_one_line(model, tmp_path, request, workers):
    store = request.getfixturevalue("postgres") if workers > 1 else str(tmp_path / "people.db")
    path, url = relay_file(tmp_path, model, store)
    with SessionStore(store) as opened:
        opened.database.execute("PRAGMA user_version=5" if workers == 1 else "UPDATE dphmm_format SET format = 5")
    done = run("serve", path, "--workers", workers)
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
    assert "must be of format 1, got 5; use the version of dphmm that made it, or a new" in done.stderr
    assert not is_there(url)


# ---- workers ---------------------------------------------------------------------------------------------------------


def test_workers_that_end_before_they_served_anything_are_given_up_with_an_error(tmp_path, monkeypatch, caplog):
    import uvicorn

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    config = uvicorn.Config("tests.serve.dying:app", factory=True, port=0, workers=2, log_config=None)
    kept = {one: signal.getsignal(one) for one in signal.Signals if one not in (signal.SIGKILL, signal.SIGSTOP)}
    try:
        with config.bind_socket() as listening:
            supervisor = Workers(config, [listening])
            supervisor.run()
    finally:
        for one, handler in kept.items():
            if handler is not None:
                signal.signal(one, handler)
    assert supervisor.failed
    assert "and no other is started" in caplog.text


@pytest.mark.slow
def test_workers_come_up_on_a_processor_that_gives_them_a_tenth_of_its_time(model, tmp_path, postgres):
    """They are stopped nine tenths of the time; with uvicorn's five seconds they are ended while they import."""
    path, url = relay_file(tmp_path, model, postgres)
    with started_slowly(path, url) as (process, slowly):
        until = time.monotonic() + 100
        while not is_ready(url):
            assert process.poll() is None, path.with_suffix(".log").read_text()
            assert time.monotonic() < until, path.with_suffix(".log").read_text()
            slowly()
        assert httpx.post(f"{url}/owntracks", json=location(), auth=ANN, timeout=60).status_code == 200
    logged = path.with_suffix(".log").read_text()
    assert "ended" not in logged
    assert len(releases(postgres)) == 1


def is_ready(url):
    try:
        return httpx.get(f"{url}/ready", timeout=0.2).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def started_slowly(path, url):
    command = [sys.executable, "-m", "dphmm", "serve", str(path), "--workers", "2"]
    with path.with_suffix(".log").open("wb") as log, subprocess.Popen(command, env=ENVIRONMENT, stderr=log) as process:

        def workers():
            try:
                found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
                return [int(one) for one in found]
            except OSError:
                return []

        def tell(sig):
            for one in workers():
                try:
                    os.kill(one, sig)
                except ProcessLookupError:
                    continue

        def slowly():
            tell(signal.SIGSTOP)
            time.sleep(0.45)
            tell(signal.SIGCONT)
            time.sleep(0.05)

        try:
            yield process, slowly
        finally:
            tell(signal.SIGCONT)
            process.terminate()
            process.wait(60)
