"""Tests of the serve command with one or more processes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from math import exp
from pathlib import Path
from typing import Any

import httpx
import pytest
import tomli_w

from dphmm import ReleaseSettings
from dphmm.errors import ConfigurationError
from dphmm.release.session_store import SessionStore
from tests.serve.conftest import (
    PATIENCE_S,
    START,
    START_S,
    TOKEN,
    count_messages,
    get_page_token,
    make_location,
    wait_for,
)
from tests.serve.test_endpoints import ANN

ROOT = Path(__file__).parents[2]


SECRET = "correct-horse-battery-staple"


def write_relay_file(folder: Path, model: Path, store: str) -> tuple[Path, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    content = {
        "model": str(model), "store": store, "listen": listen, "release": {"policy": "utility:1km", "epsilon": 0.5},
        "device": [{"user": user, "token": token} for user, token in TOKEN.items()],
        "page": [{"user": user, "token": get_page_token(user)} for user in TOKEN],
    }  # fmt: skip
    path = folder / "relay.toml"
    path.write_text(tomli_w.dumps(content))
    return path, f"http://{listen}"


def is_there(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", verify=False).status_code == 200
    except httpx.HTTPError:
        return False


def post_fix(url: str, fix: dict[str, Any], auth: tuple[str, str] = ANN) -> httpx.Response:
    """Post over plain HTTP, since loading certificates takes long."""
    return httpx.post(f"{url}/owntracks", json=fix, auth=auth, timeout=PATIENCE_S, verify=False)


def post_and_stop(command: list[str], url: str, is_done: Callable[[], bool] = lambda: True) -> str:
    """Post equal and different timesteps, stop the relay, and return its log."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for(lambda: is_there(url), START_S)
            for second in (START, START, START + 300, START + 600, START):
                answer = post_fix(url, make_location(second, 45.0123456))
                assert (answer.status_code, answer.json()) == (200, [])
            wait_for(is_done)
            time.sleep(0.2)  # allow time for unexpected messages
        finally:
            process.terminate()
        _, logged = process.communicate(timeout=120)
    assert process.returncode in (0, -15), logged
    return logged


@pytest.mark.slow
def test_one_process_keeps_store_and_logs_no_location(model, tmp_path):
    path, url = write_relay_file(tmp_path, model, str(tmp_path / "users.db"))
    logged = post_and_stop([sys.executable, "-m", "dphmm", "serve", str(path)], url)
    assert "45.0123" not in logged
    with SessionStore(tmp_path / "users.db", readonly=True) as store:
        assert store.progress(store.session("ann").number).count == 3


@pytest.mark.slow
def test_several_processes_share_database_and_send_each_timestep_once(model, tmp_path, postgres, inbox):
    path, url = write_relay_file(tmp_path, model, postgres)
    with path.open("a") as file:
        file.write(f'\n[[recipient]]\nname = "family"\nkind = "webhook"\nurl = "{inbox.url}"\n')
    post_and_stop(
        [sys.executable, "-m", "dphmm", "serve", str(path), "--workers", "2"], url, lambda: len(inbox.messages) >= 3
    )
    assert len(inbox.messages) == 3
    with SessionStore(postgres, readonly=True) as store:
        assert store.progress(store.session("ann").number).count == 3


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"store": "users.db"}, "workers must be 1 unless"),
        ({"listen": "nowhere"}, "host:port"),
        ({"model": "none.npz"}, "none.npz"),
        ({"release": {"policy": "nonsense"}}, "nonsense"),
        ({"release": {"epsilon": -1}}, "epsilon"),
        ({"device": []}, "device"),
        ({"device": [{"user": "ann", "token": "short"}]}, "at least 16 characters"),
        ({"device": [{"user": "a/b", "token": "x" * 40}]}, "user"),
        (
            {"release": {"policy": "utility:1parsec"}},
            "relay.toml: a length in a policy must have a unit",
        ),
        (
            {"recipient": [{"name": "f", "kind": "mqtt", "url": "http://a"}]},
            "'f': url must be of the form mqtt://host or mqtts://host",
        ),
        (
            {"recipient": [{"name": "f", "kind": "webhook", "url": "ftp://a"}]},
            "'f': url must be of the form http://host or https://host",
        ),
        (
            {"mqtt": {"url": "mqtt://a", "topic": "owntracks"}},
            "relay.toml: mqtt.topic must be an MQTT topic filter whose second level is the user, such as "
            "owntracks/+/+, got 'owntracks'",
        ),
        ({"recipient": [{"name": "f", "kind": "fax", "url": "http://a"}]}, "kind"),
        (
            {"recipient": [{"name": "f", "kind": "webhook", "url": "http://a", "users": ["eve"]}]},
            "must have a device, got 'eve'",
        ),
        ({"adversary_map": "none.osm.pbf"}, "adversary_map"),
        ({"speed": 3}, "'speed' is unknown"),
    ],
)
def test_invalid_file_raises_in_one_line_before_opening_a_socket(model, tmp_path, keys, message):
    from click.testing import CliRunner

    from dphmm.cli import main

    path, _ = write_relay_file(tmp_path, model, str(tmp_path / "users.db"))
    content = {"model": str(model), "device": [{"user": "ann", "token": "x" * 40}], "store": "p.db"} | keys
    path.write_text(tomli_w.dumps(content))
    done = CliRunner().invoke(main, ["serve", str(path), "--workers", "2" if "store" in keys else "1"])
    assert done.exit_code == 2
    (line,) = done.stderr.splitlines()
    assert message in line
    assert not (tmp_path / "users.db").exists()


@pytest.mark.parametrize(
    ("listen", "address"), [("127.0.0.1:0", ("127.0.0.1", 0)), ("[::1]:65535", ("::1", 65535)), ("here:65536", None)]
)
def test_relay_listens_at_any_valid_port(config, listen, address):
    if address is None:
        with pytest.raises(ValueError, match="host:port"):
            config(listen=listen)
    else:
        assert config(listen=listen).address == address


@pytest.mark.parametrize(
    ("topic", "is_valid", "is_valid_with_database"),
    [
        ("owntracks/+/+", True, True),
        ("owntracks/ann/+", True, True),
        ("owntracks/+", True, True),
        ("owntracks/#", True, True),
        ("+/+/#", True, True),
        ("#", True, True),
        ("owntracks/phone/+", False, True),  # such a user can be added to a database
        ("owntracks", False, False),
        ("", False, False),
        ("owntracks//+", False, False),
        ("owntracks/#/x", False, False),
        ("#/ann", False, False),
        ("owntracks/+/a+", False, False),
        ("owntracks/ann#", False, False),
        ("owntracks/ann/phone#", False, False),
        ("owntracks/+/\0", False, False),
    ],
)
def test_topic_without_messages_of_a_user_raises(config, topic, is_valid, is_valid_with_database):
    for store, accepts in (("users.db", is_valid), ("postgresql://host/relay", is_valid_with_database)):
        with nullcontext() if accepts else pytest.raises(ValueError, match="topic must be an MQTT topic filter"):
            config(store=store, mqtt={"url": "mqtt://a", "topic": topic})


@pytest.mark.parametrize(
    "keys",
    [
        {"device": [{"user": "ann", "token": SECRET[:15]}]},
        {"device": [{"user": "ann", "token": [SECRET]}]},
        {"device": [{"token": SECRET}]},
        {"recipient": [{"name": "f", "kind": "webhook", "url": "ftp://a", "headers": {"Authorization": SECRET}}]},
        {"recipient": [{"name": "f", "url": "http://a", "headers": {"Authorization": SECRET}}]},
        {"recipient": [{"name": "f", "kind": "webhook", "url": "http://a", "headers": SECRET}]},
        {"mqtt": {"url": "mqtt://a", "password": 7, "topic": 3}},
        {"mqtt": {"password": SECRET}},
        {"mqtt": {"url": f"http://ann:{SECRET}@broker.example"}},
        {"recipient": [{"name": "f", "kind": "webhook", "url": f"htp://a.example/{SECRET}"}]},
        {"device": [{"user": "ann", "token": SECRET}, {"user": "bob", "token": SECRET}]},
    ],
    ids=[
        "short token",
        "token in list",
        "missing user",
        "recipient scheme",
        "missing kind",
        "headers string",
        "mqtt types",
        "missing mqtt url",
        "mqtt scheme",
        "url scheme",
        "repeated token",
    ],
)
def test_errors_never_repeat_secrets(tmp_path, keys):
    from dphmm.serve import RelayConfig

    path = tmp_path / "relay.toml"
    content = {"model": "m.npz", "store": "p.db", "device": [{"user": "ann", "token": "x" * 40}]} | keys
    path.write_text(tomli_w.dumps(content))
    with pytest.raises(ConfigurationError) as refused:
        RelayConfig.read(path)
    assert SECRET[:15] not in str(refused.value)
    assert "7" not in str(refused.value).removeprefix(str(path))
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.slow
def test_new_file_is_private_and_contains_no_token(model, tmp_path, monkeypatch):
    from dphmm.serve import RelayConfig, setup, write_relay

    monkeypatch.setattr(setup, "_MAX_USERS", 1)
    lines = write_relay(tmp_path / "relay.toml", model, ["ann", "bob"])
    tokens = {line.rpartition(" ")[2] for line in lines if "Overland" in line}
    assert len(tokens) == 2
    text = (tmp_path / "relay.toml").read_text()
    assert all(token not in text for token in tokens)
    assert (tmp_path / "relay.toml").stat().st_mode & 0o777 == 0o600
    assert RelayConfig.read(tmp_path / "relay.toml").users == ("ann", "bob")
    promised = RelayConfig.read(tmp_path / "relay.toml").release
    assert promised == ReleaseSettings.for_a_day(policy="utility:1km"), "without an error target, a daily budget"
    assert "of any 24 hours are at most 20.1 times as likely under one as under the other" in " ".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("url", [None, "https://relay.example"])
def test_new_file_states_address_or_that_phones_cannot_reach_it(model, tmp_path, monkeypatch, url):
    from dphmm.serve import RelayConfig, add_device, setup, write_relay

    monkeypatch.setattr(setup, "_MAX_USERS", 1)
    text = " ".join(write_relay(tmp_path / "relay.toml", model, ["ann"], url=url))
    assert f"URL {url or 'http://127.0.0.1:8787'}/owntracks" in text
    assert ("Phones cannot reach http://127.0.0.1:8787" in text) == (url is None)
    assert ("QR code for OwnTracks:" in text) == (url is not None)
    assert RelayConfig.read(tmp_path / "relay.toml").url == url
    assert f"URL {url or 'http://127.0.0.1:8787'}/owntracks" in " ".join(add_device(tmp_path / "relay.toml", "bob"))


@pytest.mark.slow
def test_new_file_for_error_target_has_a_schedule(model, tmp_path):
    from dphmm.serve import RelayConfig, write_relay

    lines = write_relay(tmp_path / "relay.toml", model, ["ann"], target_error_km=1.0)
    written = RelayConfig.read(tmp_path / "relay.toml")
    assert written.release.schedule.target_error == 1.0
    assert written.release.schedule.window_epsilon >= written.release.epsilon
    text = " ".join(lines)
    assert float(text.partition("a mean error of ")[2].split()[0].replace(",", "")) <= 1000
    maximum = text.partition("One release is at most ")[2].partition(" times as likely from one")[0]
    assert 0 <= float(maximum) - exp(written.release.epsilon) < 0.1, "upper bounds are rounded up"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target_error_km", "hours", "epsilon", "stated", "not_stated"),
    [
        (0.5, 2, 2.0, "--horizon", "--epsilon"),
        (0.1, 24, 1.0, "--epsilon", "--horizon"),
        (0.1, 2, 1.0, "--epsilon", None),
    ],
)
def test_missed_error_target_names_its_limit(
    model, tmp_path, monkeypatch, target_error_km, hours, epsilon, stated, not_stated
):
    from dphmm.serve import setup, write_relay

    monkeypatch.setattr(setup, "_MAX_USERS", 1)
    lines = write_relay(
        tmp_path / "relay.toml", model, ["ann"], epsilon=epsilon, target_error_km=target_error_km, hours=hours
    )
    text = " ".join(lines).partition("90th percentile")[2].partition("Take two locations")[0]
    assert stated in text
    assert not_stated is None or not_stated not in text


@pytest.mark.slow
def test_demo_is_a_relay_with_simulated_phones():
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "dphmm", "serve", "--demo", "--port", "0"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            assert process.stdout is not None
            url = next(line.split()[1].rstrip("/") for line in process.stdout if line.startswith("Open "))
            assert not url.endswith(":0"), "the port that the system chose"
            token = next(line.split()[1] for line in process.stdout if line.startswith("  ann"))
            wait_for(lambda: is_there(url), 60)
            with httpx.Client(base_url=url) as client:
                assert client.post("/page/login", json={"token": token}).status_code == 200
                wait_for(lambda: client.get("/page/trail").json()["num_releases"] > 3, 30)
                wait_for(lambda: count_messages(client, "delivered")["friends"] > 0)
        finally:
            process.terminate()
    assert process.returncode in (0, -15)


def test_demo_rejects_file_and_relay_requires_one():
    from click.testing import CliRunner

    from dphmm.cli import main

    for words in (["serve"], ["serve", "relay.toml", "--demo"]):
        done = CliRunner().invoke(main, words)
        assert done.exit_code == 2
        assert "exactly one of FILE and --demo is required" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["relay.toml", "--model", "m.npz"], "--model requires --init"),
        (["relay.toml", "--user", "ann"], "--user requires --init"),
        (["relay.toml", "--policy", "utility:1km"], "--policy requires --init"),
        (["relay.toml", "--overwrite"], "--overwrite requires --init"),
        (["relay.toml", "--port", "8787"], "--port requires --demo"),
        (["relay.toml", "--init", "--port", "1"], "--port requires --demo"),
        (["relay.toml", "--init", "--workers", "2"], "--workers cannot be combined with --init"),
        (["relay.toml", "--init", "--accept-changes"], "--accept-changes cannot be combined with --init"),
        (["--demo", "--init"], "--init cannot be combined with --demo"),
        (["--demo", "--workers", "2"], "--workers cannot be combined with --demo"),
        (["--demo", "--accept-changes"], "--accept-changes cannot be combined with --demo"),
        (["--demo", "--user", "eve"], "--user cannot be combined with --demo"),
        (["--demo", "--port", "70000"], "Invalid value for '--port': 70000 is not in the range 0<=x<=65535"),
        (["relay.toml", "--workers", "0"], "Invalid value for '--workers': 0 is not in the range x>=1"),
    ],
)
def test_options_without_effect_are_refused_before_any_work(tmp_path, monkeypatch, words, message):
    from tests import command_line

    monkeypatch.chdir(tmp_path)
    done = command_line.run("serve", *words)
    assert done.exit_code == 2
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--horizon", "2h"], "--horizon requires --target-error, got --horizon 2h without it"),
        (["--target-error", "1km", "--horizon", "48h"], "--horizon must be more than 0 and at most 24h, got 48h"),
        (["--target-error", "5000km"], "--target-error must be less than 1000km, got 5000km"),
        (
            ["--user", "a/b"],
            "--user must be a name of 1 to 80 printable characters without '/', '#' and '+', got 'a/b'",
        ),
        (["--recipient", "family"], "--recipient must be NAME:KIND:URL, got 'family'"),
    ],
)
def test_messages_of_a_new_relay_name_options(tmp_path, monkeypatch, words, message):
    from tests import command_line

    monkeypatch.chdir(tmp_path)
    box = ["--bbox", "44.97", "-30.04", "45.03", "-29.96"]
    done = command_line.run("serve", "relay.toml", "--init", *box, "--user", "ann", *words)
    assert (done.exit_code, done.stderr) == (2, f"Error: {message}\n")
    assert list(tmp_path.iterdir()) == []


def test_new_relay_that_releases_nothing_says_so(model, tmp_path, monkeypatch):
    from dphmm.serve import setup, write_relay

    monkeypatch.setattr(setup, "_MAX_USERS", 1)
    text = " ".join(write_relay(tmp_path / "relay.toml", model, ["ann"], epsilon=1.0, target_error_km=30.0))
    assert "Nothing is released for this user" in text
    assert "One release" not in text
    assert "Recipients learn" not in text


def test_demo_refuses_a_port_in_use_before_any_work(monkeypatch):
    from tests import command_line

    monkeypatch.setattr("dphmm.serve.demo.build_city", lambda: pytest.fail("work began"))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        done = command_line.run("serve", "--demo", "--port", str(port))
    assert done.exit_code == 2
    assert done.stderr == f"Error: --port {port} cannot be used (Address already in use): choose another one\n"


@pytest.mark.slow
def test_missing_server_is_named_with_installation_command():
    code = "import runpy, sys; sys.modules['uvicorn'] = None; sys.argv[1:] = ['serve', 'relay.toml']; "
    code += "runpy.run_module('dphmm', run_name='__main__')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode != 0
    assert ran.stderr == "Error: uvicorn is not installed; install it with: pip install 'dphmm[serve]'\n"


@pytest.mark.slow
def test_relay_is_initialised_from_region_only(tmp_path, monkeypatch):
    from click.testing import CliRunner

    from dphmm import MarkovModel
    from dphmm.cli import main
    from dphmm.serve import RelayConfig, setup

    monkeypatch.setattr(setup, "_MAX_USERS", 1)
    file, box = str(tmp_path / "relay.toml"), ["--bbox", "44.97", "-30.04", "45.03", "-29.96"]
    done = CliRunner().invoke(main, ["serve", file, "--init", *box, "--user", "ann", "--epsilon", "1"])
    assert done.exit_code == 0, done.stderr
    assert "OwnTracks" in done.stdout
    assert (MarkovModel.load(tmp_path / "relay.npz").provenance or {})["learned_from"] == "no users"
    assert RelayConfig.read(tmp_path / "relay.toml").users == ("ann",)
    other = str(tmp_path / "other.toml")
    for words in (
        [*box, "--user", "ann", "--policy", "[]"],
        ["--user", "ann"],
        [*box, "--town", "Lyon", "--user", "ann"],
    ):
        assert CliRunner().invoke(main, ["serve", other, "--init", *words]).exit_code == 2
    assert {path.name for path in tmp_path.iterdir()} == {"relay.toml", "relay.npz"}
