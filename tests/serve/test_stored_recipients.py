"""Tests of recipients in the database of a relay, which change without a restart."""

from __future__ import annotations

import json
import tomllib

import pytest
import tomli_w
from click.testing import CliRunner

from dphmm.cli import main
from dphmm.errors import ConfigurationError
from dphmm.release.session_store import SessionStore
from dphmm.release.session_transfer import export_store, import_store
from dphmm.serve import RelayConfig, add_device, add_recipient, list_recipients, pause_recipient, remove_recipient
from dphmm.serve.config import StoredRecipient
from dphmm.serve.devices_and_recipients import Access, AccessTable
from dphmm.serve.recipient_tables import RecipientTables
from tests.serve.conftest import START, TOKEN, get_page_token, make_location, read_metrics, serve_relay, wait_for
from tests.serve.test_delivery import STEP

# Limit of a wait for a change that running relays apply within about a second of processor time.
APPLY_S = 20.0


@pytest.fixture
def path(postgres, model, tmp_path):
    """Return the file of a relay with devices and without recipients."""
    keys = {
        "model": str(model),
        "store": postgres,
        "release": {"policy": "utility:1km", "epsilon": 0.5},
        "device": [{"user": user, "token": token} for user, token in TOKEN.items()],
        "page": [{"user": user, "token": get_page_token(user)} for user in TOKEN],
    }
    (tmp_path / "relay.toml").write_text(tomli_w.dumps(keys))
    return tmp_path / "relay.toml"


def post(client, step, user="ann"):
    body = make_location(START + STEP * step)
    assert client.post("/owntracks", json=body, auth=(user, TOKEN[user])).status_code == 200


def list_times(inbox, user="ann"):
    """Return the times of the messages in an inbox, in their order."""
    rows = [json.loads(body) for _, _, body in inbox.messages]
    return [row["time"] for row in rows if row["user"] == user]


def get_active(postgres):
    with SessionStore(postgres) as store:
        return RecipientTables(store).list_active_recipients()


def write(path, **keys):
    """Add keys to a relay's file."""
    path.write_text(tomli_w.dumps(tomllib.loads(path.read_text()) | keys))


@pytest.mark.slow
def test_recipient_is_added_and_removed_while_two_workers_run(path, inbox, postgres, monkeypatch):
    monkeypatch.setenv("DPHMM_RECIPIENT_FAMILY", "Bearer secret")
    config = RelayConfig.read(path)
    with serve_relay(config) as first, serve_relay(config) as second:
        post(first, 0)
        post(first, 0, "bob")
        headers = {"Authorization": "env:DPHMM_RECIPIENT_FAMILY"}
        add_recipient(path, "family", "webhook", inbox.url, {"users": ["ann"], "headers": headers})
        for client in (first, second):
            wait_for(lambda: "family" in read_text(client), APPLY_S)  # noqa: B023 - it is waited for here
        for step, client in ((1, first), (2, second)):
            post(client, step)
            post(client, step, "bob")
        wait_for(lambda: len(inbox.messages) == 2)
        times = list_times(inbox)
        assert len(set(times)) == 2, "nothing twice, of the other user or of the time before"
        assert all(headers["authorization"] == "Bearer secret" for _, headers, _ in inbox.messages)
        assert get_names(first) == get_names(second) == ["family"]
        remove_recipient(path, "family")
        for client in (first, second):
            wait_for(lambda: "family" not in get_waiting(client), APPLY_S)  # noqa: B023
        wait_for(lambda: get_active(postgres)["ann"] == set(), APPLY_S)
        for step, client in ((3, first), (4, second)):
            post(client, step)
        assert get_names(first) == get_names(second) == []
        add_recipient(path, "family", "webhook", inbox.url, {"users": ["ann"], "headers": headers})
        wait_for(lambda: get_active(postgres)["ann"], APPLY_S)
        for client in (first, second):
            wait_for(lambda: "family" in get_waiting(client), APPLY_S)  # noqa: B023
    assert list_times(inbox) == times
    with SessionStore(postgres) as store:
        (key,) = get_active(postgres)["ann"]
        state = RecipientTables(store).get_state(key, store.session("ann").number)
        assert state.num_sent == state.num_releases == 5, "it is sent nothing of its absence"
        assert state.has_own_belief
        assert "secret" not in str(store.database.execute("SELECT * FROM recipient"))


def read_text(client):
    return client.get("/metrics").text


def get_waiting(client):
    """Return the recipients for which a worker counts waiting releases."""
    return "".join(name for name in read_metrics(client) if name.startswith("dphmm_waiting_messages"))


def get_names(client):
    assert client.post("/page/login", json={"token": get_page_token("ann")}).status_code == 200
    return [recipient["name"] for recipient in client.get("/page/state").json()["recipients"]]


@pytest.mark.slow
def test_waiting_releases_are_not_sent_after_removal_or_pause(path, inbox, postgres):
    """A removed or paused recipient is sent nothing of what waited for it."""
    inbox.status = 503
    add_recipient(path, "family", "webhook", inbox.url)
    config = RelayConfig.read(path)
    with serve_relay(config) as client:
        for step in range(3):
            post(client, step)
        wait_for(lambda: read_metrics(client)['dphmm_messages_total outcome="failed" recipient="family"'] >= 1)
        pause_recipient(path, "family")
        wait_for(lambda: get_active(postgres)["ann"] == set(), APPLY_S)
        inbox.status = 200
        pause_recipient(path, "family", paused=False)
        wait_for(lambda: get_active(postgres)["ann"], APPLY_S)
        wait_for(lambda: 'dphmm_waiting_messages recipient="family"' in read_metrics(client), APPLY_S)
        assert read_metrics(client)['dphmm_waiting_messages recipient="family"'] == 0
    assert inbox.messages == []


@pytest.mark.slow
def test_predictions_beyond_a_limit_follow_the_present_recipients(path, inbox, postgres):
    """The recipient is added to a running worker, and removed again."""
    write(path, limits={"epsilon": 0.5})
    with serve_relay(RelayConfig.read(path)) as client:
        post(client, 0)
        post(client, 1)
        assert count_releases(postgres) == 1, "without a recipient of predictions, nothing is recorded"
        add_recipient(path, "family", "webhook", inbox.url, {"users": ["ann"]})
        wait_for(lambda: "family" in read_text(client), APPLY_S)
        post(client, 2)
        wait_for(lambda: inbox.messages)
        (message,) = (json.loads(body) for _, _, body in inbox.messages)
        assert message["released"] is False
        remove_recipient(path, "family")
        wait_for(lambda: not get_active(postgres).get("ann"), APPLY_S)
        post(client, 3)
    assert count_releases(postgres) == 2


def count_releases(postgres):
    with SessionStore(postgres, readonly=True) as store:
        return store.progress(store.session("ann").number).count


@pytest.mark.slow
def test_older_list_of_recipients_is_not_applied_after_a_later_one(path, postgres):
    """A process that has read an earlier version does not undo a removal."""
    config = RelayConfig.read(path)
    add_recipient(path, "family", "webhook", "http://127.0.0.1:9/in")
    with serve_relay(config) as client:
        post(client, 0)
    with SessionStore(postgres) as store:
        table = AccessTable(store)
        tables = RecipientTables(store)
        number = store.session("ann").number
        access = Access(config)
        access.refresh(table)
        earlier = access.get_active_recipients("ann")
        remove_recipient(path, "family")
        assert tables.set_active_recipients(number, {}, lambda: True)
        assert not tables.set_active_recipients(number, earlier, lambda: table.get_version() == access.version)
        assert tables.list_active_recipients()["ann"] == set()
        assert tables.set_active_recipients(number, earlier), "the broken twin: it applies the earlier list"
        assert tables.list_active_recipients()["ann"] == set(earlier)


@pytest.mark.slow
def test_recipients_of_the_file_are_not_shadowed(path, inbox, postgres, caplog):
    family = {"name": "family", "kind": "webhook", "url": inbox.url}
    write(path, recipient=[family])
    with pytest.raises(ConfigurationError, match=r"recipient 'family' is in .*relay.toml already"):
        add_recipient(path, "family", "webhook", "http://127.0.0.1:9/in")
    for change in (remove_recipient, pause_recipient):
        with pytest.raises(ConfigurationError, match=r"must be in the database, got 'family': change .*relay.toml"):
            change(path, "family")
    with SessionStore(postgres) as store:  # as before the file contained it
        AccessTable(store).add_recipient(StoredRecipient(**family | {"url": "http://127.0.0.1:9/in"}))
    with serve_relay(RelayConfig.read(path)) as client:
        post(client, 0)
        wait_for(lambda: len(inbox.messages) == 1)
    assert "'family' in the database is not used: its name is that of another recipient" in caplog.text
    assert [entry["defined_in"] for entry in list_recipients(path)] == ["file"]


def test_users_of_a_new_recipient_must_have_a_device(path, postgres):
    add_device(path, "carl")
    with pytest.raises(ConfigurationError, match="users of recipient 'family' must have a device, got 'eve'"):
        add_recipient(path, "family", "webhook", "https://recorder.example/in", {"users": ["ann", "carl", "eve"]})
    assert list_recipients(path) == []
    add_recipient(path, "family", "webhook", "https://recorder.example/in", {"users": ["ann", "carl"]})
    assert [entry["users"] for entry in list_recipients(path)] == [["ann", "carl"]]


HOSTILE = [
    ({"name": "a/b"}, "name must be a name of 1 to 80 printable"),
    ({"name": "a\nb"}, "name must be a name of 1 to 80 printable"),
    ({"name": "a\x85b"}, "name must be a name of 1 to 80 printable"),
    ({"name": "a\u2028b"}, "name must be a name of 1 to 80 printable"),
    ({"name": ""}, "name must be a name of 1 to 80 printable"),
    ({"name": "\ud800"}, "name must be a name of 1 to 80 printable"),
    ({"name": "x" * 81}, "name must be a name of 1 to 80 printable"),
    ({"url": "file:///etc/passwd"}, "'family': url must be of the form http://host or https://host"),
    ({"url": "https://"}, "'family': url must be of the form http://host or https://host"),
    ({"url": "https://user:secret@host/"}, "without a user or password"),
    ({"url": "https://host/\r\nX: 1"}, "must be printable ASCII"),
    ({"url": "https://host:99999/"}, "'family': url must be of the form http://host or https://host"),
    ({"url": "https://[::1"}, "'family': url must be of the form http://host or https://host"),
    ({"url": "mqtt://host"}, "'family': url must be of the form http://host or https://host"),
    ({"kind": "mail"}, "kind .*'owntracks'"),
    ({"users": ["a/b"]}, "users.0 must be a name of 1 to 80 printable"),
    ({"precision": "5"}, "precision must be a length"),
    ({"content": "zone", "precision": "5km"}, "cannot be combined"),
    (
        {"headers": {"Authorization": "Bearer secret"}},
        "header Authorization must have a value env:DPHMM_RECIPIENT_NAME",
    ),
    ({"headers": {"Authorization": "env:"}}, "header Authorization must have a value env:DPHMM_RECIPIENT_NAME"),
    ({"headers": {"Authorization": "env:A\n"}}, "header Authorization must have a value env:DPHMM_RECIPIENT_NAME"),
    (
        {"headers": {"Authorization": "env:PGPASSWORD"}},
        "header Authorization must have a value env:DPHMM_RECIPIENT_NAME",
    ),
    ({"headers": {"A: b\r\nC": "env:DPHMM_RECIPIENT_A"}}, "headers must have names of letters"),
]


@pytest.mark.parametrize(("changes", "message"), HOSTILE)
def test_hostile_values_are_refused_in_one_line(path, postgres, changes, message):
    keys = {"name": "family", "kind": "webhook", "url": "https://recorder.example/in"} | changes
    with pytest.raises(ConfigurationError, match=message) as caught:
        add_recipient(path, keys.pop("name"), keys.pop("kind"), keys.pop("url"), keys)
    assert "\n" not in str(caught.value)
    assert "Bearer secret" not in str(caught.value)
    assert "user:secret" not in str(caught.value)
    with SessionStore(postgres) as store:
        assert AccessTable(store).list_recipients() == {}
        assert AccessTable(store).get_version() == 0


@pytest.mark.slow
def test_invalid_rows_of_the_database_are_not_used(path, inbox, postgres, caplog):
    """True locations cannot be requested through the database."""
    true = {"name": "spy", "kind": "webhook", "url": inbox.url, "true_locations_unprotected": True}
    bodies = {"spy": json.dumps(true), "b": "{", "c": "[]", "d": json.dumps({"name": "family"})}
    add_recipient(path, "family", "webhook", inbox.url)
    with SessionStore(postgres) as store:
        for name, body in bodies.items():
            store.database.execute("INSERT INTO recipient VALUES (?, ?)", (name, body))
    with serve_relay(RelayConfig.read(path)) as client:
        post(client, 0)
        wait_for(lambda: len(inbox.messages) == 1)
    assert "recipient 'spy' in the database is not used: recipient: true_locations_unprotected must be" in caplog.text
    assert [entry["name"] for entry in list_recipients(path)] == ["family"]


@pytest.mark.slow
def test_messages_wait_until_the_variable_of_a_header_is_set(path, inbox, monkeypatch, caplog):
    monkeypatch.delenv("DPHMM_RECIPIENT_FAMILY", raising=False)
    add_recipient(path, "family", "webhook", inbox.url, {"headers": {"Authorization": "env:DPHMM_RECIPIENT_FAMILY"}})
    config = RelayConfig.read(path)
    with serve_relay(config) as client:
        post(client, 0)
    assert "messages to recipient family wait: env:DPHMM_RECIPIENT_FAMILY is not set" in caplog.text
    monkeypatch.setenv("DPHMM_RECIPIENT_FAMILY", "Bearer secret\n")
    with serve_relay(config):
        pass
    expected = "messages to recipient family wait: env:DPHMM_RECIPIENT_FAMILY must be printable ASCII without spaces"
    assert expected in caplog.text
    assert inbox.messages == []
    monkeypatch.setenv("DPHMM_RECIPIENT_FAMILY", "Bearer secret")
    with serve_relay(config):
        wait_for(lambda: len(inbox.messages) == 1)


@pytest.mark.slow
def test_export_and_import_contain_recipients(path, inbox, postgres, tmp_path):
    add_recipient(path, "family", "webhook", inbox.url, {"users": ["ann"], "precision": "5km"})
    with SessionStore(postgres) as store:
        rows = AccessTable(store).list_recipients()
    assert list(rows) == ["family"]
    export_store(postgres, tmp_path / "moved.export")
    import_store(tmp_path / "moved.export", tmp_path / "users.db")
    with SessionStore(tmp_path / "users.db") as store:
        assert AccessTable(store).list_recipients() == rows
        assert AccessTable(store).get_version() == 1


@pytest.mark.slow
def test_commands(path, model, tmp_path, postgres):
    def run(*words):
        return CliRunner().invoke(main, ["serve", *map(str, words)])

    assert run("recipients", path).output == ""
    url = "https://recorder.example/secret"
    more = "users=ann", "precision=5km", "when_withheld=nothing", "headers.X-Key=env:DPHMM_RECIPIENT_KEY"
    done = run("add-recipient", path, "family", "webhook", url, *more)
    assert (done.exit_code, done.output) == (0, "Changed in the database. Running relays apply it within a second.\n")
    again = run("add-recipient", path, "family", "webhook", url)
    assert again.exit_code == 2
    assert "recipient 'family' is in the database already; remove it first" in again.output
    assert run("pause-recipient", path, "family").exit_code == 0
    assert run("recipients", path).output == "family\twebhook\trecorder.example\tann\tpaused\tdatabase\n"
    assert run("resume-recipient", path, "family").exit_code == 0
    listed = json.loads(run("recipients", path, "--json").output)
    assert listed == {
        "name": "family", "kind": "webhook", "host": "recorder.example", "users": ["ann"], "paused": False,
        "defined_in": "database",
    }  # fmt: skip
    for word, message in (("precision", "must have a KEY"), ("a=b", "must have a KEY"), ("precision=", "a length"),
                          ("headers.A=x", "must have a value env:DPHMM_RECIPIENT_NAME")):  # fmt: skip
        refused = run("add-recipient", path, "b", "webhook", url, word)
        assert (refused.exit_code, message in refused.output) == (2, True), refused.output
    assert "got precision twice" in run("add-recipient", path, "b", "webhook", url, *more, "precision=1km").output
    assert run("remove-recipient", path, "family").exit_code == 0
    for command in ("remove-recipient", "pause-recipient"):
        refused = run(command, path, "family")
        assert refused.exit_code == 2
        assert "the recipient must be in the database, got 'family'" in refused.output
    write(path, store="users.db")
    done = run("add-recipient", path, "family", "webhook", url, *more)
    assert done.exit_code == 0, done.output
    (recipient,) = RelayConfig.read(path).recipients
    assert (recipient.users, recipient.precision_m, recipient.headers) == (
        ("ann",),
        5000,
        {"X-Key": "env:DPHMM_RECIPIENT_KEY"},
    )
