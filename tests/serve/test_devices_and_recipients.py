"""Tests of devices in the database of a relay, which change without a restart."""

from __future__ import annotations

import re
import tomllib

import pytest
import tomli_w

from dphmm.errors import ConfigurationError
from dphmm.release.session_store import SessionStore
from dphmm.serve import RelayConfig, add_device, rotate_token
from dphmm.serve.config import hash_token
from dphmm.serve.devices_and_recipients import AccessTable
from tests.serve.conftest import START, TOKEN, make_location, serve_relay, wait_for
from tests.serve.test_delivery import STEP
from tests.serve.test_endpoints import read_releases


@pytest.fixture
def path(postgres, model, tmp_path, inbox):
    """Return the file of a relay without devices."""
    keys = {
        "model": str(model),
        "store": postgres,
        "url": "https://relay.example",
        "release": {"policy": "utility:1km", "epsilon": 0.5},
        "recipient": [{"name": "family", "kind": "webhook", "url": inbox.url}],
    }
    (tmp_path / "relay.toml").write_text(tomli_w.dumps(keys))
    return tmp_path / "relay.toml"


def get_tokens(lines):
    """Return the tokens that a command prints, of the page first if there is one."""
    return list(dict.fromkeys(re.findall(r"(?:page token|password) ([0-9a-f]{40})", "\n".join(lines))))


def post(client, user, token, step=0):
    return client.post("/owntracks", json=make_location(START + STEP * step), auth=(user, token)).status_code


@pytest.mark.slow
def test_device_is_accepted_and_replaced_while_relays_run(path, inbox, postgres):
    config = RelayConfig.read(path)
    with serve_relay(config) as first, serve_relay(config) as second:
        page, device = get_tokens(add_device(path, "ann"))
        for step, client in enumerate((first, second)):
            wait_for(lambda: post(client, "ann", device, step) == 200)  # noqa: B023 - it is waited for here
        assert post(first, "bob", device) == 401, "the token belongs to one user"
        assert post(first, "ann", page) == 401, "a page's token does not post"
        assert first.post("/page/login", json={"token": device}).status_code == 401
        assert second.post("/page/login", json={"token": page}).status_code == 200
        assert second.get("/page/state").json()["user"] == "ann"
        (new,) = get_tokens(rotate_token(path, "ann"))
        wait_for(lambda: post(second, "ann", new, 2) == 200)
        # A relay learns of the new token within a second. Until then, the post of a released timestep changes nothing.
        wait_for(lambda: post(first, "ann", device, 2) == 401)
        wait_for(lambda: len(inbox.messages) == 3)
        (new_page,) = get_tokens(rotate_token(path, "ann", page=True))
        wait_for(lambda: second.get("/page/state").status_code == 401, 20)
        assert second.post("/page/login", json={"token": new_page}).status_code == 200
    assert len(read_releases(postgres)) == 3
    assert "[[device]]" not in path.read_text()


@pytest.mark.slow
def test_recipients_of_users_in_the_database_change_with_the_file(path, inbox, postgres):
    """A recipient that returns is sent nothing of the time before, also without a post since."""
    _, token = get_tokens(add_device(path, "ann"))
    config = RelayConfig.read(path)
    inbox.status = 503
    with serve_relay(config) as client:
        assert post(client, "ann", token, 0) == 200
    with serve_relay(config.model_copy(update={"recipients": ()})):
        pass
    inbox.status = 200
    with serve_relay(config) as client:
        assert post(client, "ann", token, 1) == 200  # a time of the past, by the wall clock
        wait_for(
            lambda: (
                "family" not in client.get("/metrics").text
                or 'waiting_messages{recipient="family"} 0' in client.get("/metrics").text
            )
        )
    assert inbox.messages == []


@pytest.mark.slow
def test_devices_of_a_user_are_selected_by_number(path, postgres):
    tokens = [get_tokens(add_device(path, "ann"))[-1] for _ in range(2)]
    with pytest.raises(ConfigurationError, match="--number must select one of the 2 devices of 'ann' in the database"):
        rotate_token(path, "ann")
    rotate_token(path, "ann", 2)
    with SessionStore(postgres) as store:
        table = AccessTable(store)
        assert table.get_version() == 4  # a page, two devices and a change
        assert len(table.list_tokens("device", "ann")) == 2
        assert table.list_tokens("device") == table.list_tokens("device", "ann")
    assert len(set(tokens)) == 2


def test_devices_of_the_file_and_of_the_database_are_counted_together(path, postgres):
    """Otherwise one of the file would be replaced unasked, and one of the database never."""
    keys = tomllib.loads(path.read_text())
    path.write_text(tomli_w.dumps(keys | {"device": [{"user": "ann", "token": TOKEN["ann"]}]}))
    (page,) = get_tokens(rotate_token(path, "ann", page=True))  # there is none yet
    (stored,) = get_tokens(add_device(path, "ann"))
    for number in (None, 3):
        with pytest.raises(ConfigurationError, match=r"of the 2 devices of 'ann' in .*relay\.toml and the database"):
            rotate_token(path, "ann", number)
    file_text = path.read_text()
    (new,) = get_tokens(rotate_token(path, "ann", 2))
    with SessionStore(postgres) as store:
        assert AccessTable(store).list_tokens("page") == {hash_token(page): "ann"}
        assert AccessTable(store).list_tokens("device") == {hash_token(new): "ann"} != {hash_token(stored): "ann"}
    assert path.read_text() == file_text
    (new,) = get_tokens(rotate_token(path, "ann", 1))
    assert [device.token for device in RelayConfig.read(path).devices] == [hash_token(new)]


@pytest.mark.slow
def test_invalid_names_and_unknown_users_are_refused(path, postgres):
    with pytest.raises(ConfigurationError, match="USER must be a name"):
        add_device(path, "a/b")
    with pytest.raises(ConfigurationError, match="have a device in the database, got 'bob' with 0 devices"):
        rotate_token(path, "bob")
    with pytest.raises(ConfigurationError, match="have a page in the database, got 'bob' with 0 pages"):
        rotate_token(path, "bob", page=True)
    with SessionStore(postgres) as store:
        assert AccessTable(store).get_version() == 0


def test_file_store_needs_devices_in_the_file(config):
    with pytest.raises(ConfigurationError, match="at least one device"):
        RelayConfig.from_keys({"model": "m", "store": "users.db"}, "relay.toml")
