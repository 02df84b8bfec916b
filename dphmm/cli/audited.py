"""What an audit is about, out of the options that name it: states, a policy, constraints, engines, releases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dphmm.errors import ConfigurationError, DataFileError, SessionMismatchError

if TYPE_CHECKING:
    from dphmm.arrays import BoolArray, FloatArray
    from dphmm.audit.sequence import ReleasedSequence
    from dphmm.geometry.measurements import Measurements
    from dphmm.markov.model import MarkovModel
    from dphmm.policy.graph import PolicyGraph
    from dphmm.release.engine import Releaser
    from dphmm.space.states import StateSpace

_SQLITE = b"SQLite format 3\x00"


@dataclass(frozen=True, eq=False)
class Subject:
    """Named states with their measurements, and a policy over them; the model where there is one."""

    names: tuple[str, ...]
    measurements: Measurements
    policy: PolicyGraph
    model: MarkovModel | None

    @property
    def index(self) -> dict[str, int]:
        """Name → number."""
        return {name: i for i, name in enumerate(self.names)}


def subject_of(options: Mapping[str, Any]) -> Subject:
    """The states and the policy that options name: a model and a policy text, or a table of states.

    Raises
    ------
    ConfigurationError
        When neither or both are named, or the policy is missing.
    DphmmError
        As the files say.
    """
    model, states = options.get("model"), options.get("states")
    if (model is None) == (states is None):
        raise ConfigurationError("no single set of states is given; give --model, or --states with a table of them")
    return _of_model(model, options.get("policy")) if model is not None else _of_table(options)


def _of_model(path: str, text: str | None) -> Subject:
    from dphmm.policy.expression import parse_policy

    model, space = load_model(path)
    if text is None:
        raise ConfigurationError("no policy is given; give --policy, such as utility:1km")
    policy = parse_policy(text, space, model.transition)
    return Subject(state_names(space), space.measurements(), policy, model)


def _of_table(options: Mapping[str, Any]) -> Subject:
    from dphmm.audit.tables import edges_graph, read_edges, read_states
    from dphmm.geometry.measurements import Measurements
    from dphmm.policy.graph import PolicyGraph

    edges, category = options.get("edges"), options.get("category")
    if (edges is None) == (category is None):
        raise ConfigurationError("no single policy is given; with --states give --edges FILE or --category COLUMN")
    states = read_states(options["states"], category)
    policy = (
        PolicyGraph.categorical(list(states.labels or ())) if edges is None else edges_graph(states, read_edges(edges))
    )
    return Subject(states.names, Measurements(states.measurements), policy, None)


def load_model(path: str | Path | None) -> tuple[MarkovModel, StateSpace]:
    """A model that knows its states.

    Raises
    ------
    ConfigurationError
        When none is named, or it has no map.
    DataFileError
        When the file is no model.
    """
    from dphmm.markov.model import MarkovModel

    if path is None:
        raise ConfigurationError("the model is missing; give --model with the one that the releases were made with")
    model = MarkovModel.load(path)
    if model.states is None:
        raise ConfigurationError(f"{path}: the model has no map; make one with 'dphmm learn'")
    return model, model.states


def state_names(space: StateSpace) -> tuple[str, ...]:
    """What states are called: the names of places, the numbers of cells."""
    from dphmm.space.states import Places

    return tuple(space.names) if isinstance(space, Places) else tuple(str(i) for i in range(space.size))


def constraints_of(subject: Subject, options: Mapping[str, Any]) -> list[tuple[str, BoolArray]]:
    """The constraint sets that options name, each with a label: given, along the model's support, or all states.

    Raises
    ------
    ConfigurationError
        When a number of steps comes without a model, or a start without a number of steps.
    StateError
        When a state is named twice or nowhere.
    """
    import numpy as np

    from dphmm.audit.policy_audit import support_sequence
    from dphmm.audit.tables import possible_states

    found: list[tuple[str, BoolArray]] = []
    for text in options.get("possible") or ():
        found.append(
            (f"possible: {text if len(text) <= 60 else text[:57] + '…'}", possible_states(text, subject.index))
        )
    steps, start = options.get("steps"), options.get("start")
    if steps is not None:
        if subject.model is None:
            raise ConfigurationError("--steps needs a model to say what can follow; give --model, or --possible")
        first = None if start is None else possible_states(start, subject.index)
        found += _along(support_sequence(subject.model, steps, first))
    elif start is not None:
        raise ConfigurationError("--start says where the first of several steps begins; give --steps too")
    return found or [("all states", np.ones(len(subject.names), dtype=np.bool_))]


def _along(supports: Iterator[BoolArray]) -> list[tuple[str, BoolArray]]:
    """Supports over time, equal neighbours as one: 't = 3 to 7'."""
    import numpy as np

    runs: list[tuple[int, int, BoolArray]] = []
    for t, support in enumerate(supports, start=1):
        if runs and np.array_equal(runs[-1][2], support):
            runs[-1] = (runs[-1][0], t, support)
        else:
            runs.append((t, t, support))
    return [(f"t = {a}" if a == b else f"t = {a} to {b}", support) for a, b, support in runs]


def prior_of(path: str | None, index: Mapping[str, int]) -> FloatArray | None:
    """Another adversary's prior, checked to be a distribution; None where none is named.

    Raises
    ------
    DataFileError
        When the table is none, or its probabilities do not sum to one.
    """
    from dphmm.arrays import as_distribution
    from dphmm.audit.tables import read_prior
    from dphmm.errors import StochasticError

    if path is None:
        return None
    try:
        return as_distribution(read_prior(path, index), len(index), "the prior")
    except StochasticError as problem:
        raise DataFileError(path, str(problem)) from None


# ---- released sequences ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Released:
    """A person's releases with the engine that they are to be replayed with, and when each was."""

    sequence: ReleasedSequence
    engine: Releaser
    slots: tuple[int, ...]
    private: bool | None


def releases_of(path: Path, options: Mapping[str, Any], users: Sequence[str]) -> Iterator[Released]:
    """The releases in a file: durable sessions, or what 'dphmm release' wrote. One user after another.

    Raises
    ------
    ConfigurationError
        When the model or the policy is missing, or a user has no release.
    SessionMismatchError
        When a session began with another model or policy.
    DataFileError
        When the file is neither.
    """
    is_store = _is_store(path)
    model, _ = load_model(options.get("model"))
    if options.get("policy") is None and not is_store:
        raise ConfigurationError("no policy is given; give the --policy that the releases were made with")
    found = _from_store(path, model, options, users) if is_store else _from_table(path, model, options, users)
    yield from found


def _is_store(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return path.suffix.lower() != ".gpkg" and file.read(len(_SQLITE)) == _SQLITE
    except OSError as problem:
        raise DataFileError(path, f"cannot be read ({problem.strerror}); check the path") from None


def _from_store(path: Path, model: MarkovModel, options: Mapping[str, Any], users: Sequence[str]) -> Iterator[Released]:
    import numpy as np

    from dphmm.audit.sequence import ReleasedSequence
    from dphmm.release.session import MAIN_QUERY
    from dphmm.release.store import SessionStore
    from dphmm.release.terms import Terms

    with SessionStore(path, readonly=True) as store:
        known = store.names()
        for name in _chosen(users, known, path):
            session = store.session(name)
            assert session is not None, "the store has just named it"
            if set(session.terms) != {MAIN_QUERY}:
                raise ConfigurationError(f"session {name!r} answers several queries, which an audit cannot join yet")
            terms = session.terms[MAIN_QUERY]
            policy = options.get("policy")
            engine = (terms.settings if policy is None else replace(terms.settings, policy=policy)).engine(model)
            for part, was, now in replace(terms, randomness="system").differences(Terms.of(engine)):
                raise SessionMismatchError(
                    f"session {name!r} began with {part} {was}, not {now}; give the one it began with"
                )
            stored = list(store.releases(session.number))
            if stored:
                slots = np.array([release.slot for release in stored])
                records = [release.record for release in stored]
                sequence = ReleasedSequence(
                    name,
                    np.array([record.released for record in records]),
                    np.array([record.epsilon for record in records]),
                    np.diff(slots, prepend=slots[0]),
                    np.array([record.possible for record in records]),
                    np.array([record.constrained_factor for record in records]),
                )
                yield Released(sequence, engine, tuple(slots.tolist()), terms.randomness == "system")


def _from_table(path: Path, model: MarkovModel, options: Mapping[str, Any], users: Sequence[str]) -> Iterator[Released]:
    import numpy as np

    from dphmm.audit.sequence import ReleasedSequence
    from dphmm.release.settings import NAMES, ReleaseSettings
    from dphmm.space.trajectory import microseconds
    from dphmm.writers.formats import read_releases

    table = read_releases(path)
    if model.step_seconds is None:
        raise ConfigurationError(f"{options['model']}: the model has no time step; make one with 'dphmm learn'")
    step = microseconds(model.step_seconds, "step")
    for user in _chosen(users, list(dict.fromkeys(table["user"].tolist())), path):
        rows = table.select(table["user"] == user)
        mechanisms = sorted(set(rows["mechanism"].tolist()))
        if len(mechanisms) != 1:
            raise DataFileError(path, f"user {user} has releases of several mechanisms: {', '.join(mechanisms)}")
        times = rows["time"].astype("datetime64[us]").astype(np.int64)
        if (times % step).any():
            raise DataFileError(path, f"user {user}: a time is not on the model's clock of {model.step_seconds:g} s")
        slots = times // step
        sequence = ReleasedSequence(
            user,
            np.stack([rows["x_km"], rows["y_km"]], axis=1),
            rows["epsilon"],
            np.diff(slots, prepend=slots[0]),
            rows["possible_states"],
            rows["constrained_factor"],
        )
        given = {name: options[name] for name in NAMES if options.get(name) is not None}
        engine = ReleaseSettings.from_dict({**given, "mechanism": mechanisms[0]}).engine(model)
        yield Released(sequence, engine, tuple(slots.tolist()), None)


def _chosen(users: Sequence[str], known: Iterable[str], path: Path) -> list[str]:
    there = list(known)
    for user in users:
        if user not in there:
            raise ConfigurationError(f"{path} has no releases of {user!r}; there are {', '.join(there[:8])}")
    chosen = list(users or there)
    if not chosen:
        raise ConfigurationError(f"{path} holds no release; there is nothing to audit")
    return chosen


def true_states(paths: Sequence[str], released: Released, options: Mapping[str, Any]) -> list[int] | None:
    """The true states at a person's releases, out of trajectories; None where no file is named.

    Raises
    ------
    ConfigurationError
        When the person is not in the files, or no place is known at the time of a release.
    """
    import numpy as np

    from dphmm.cli.inputs import data_of

    if not paths:
        return None
    user = released.sequence.user
    model = released.engine.model
    people = data_of(paths, {**options, "users": user}).read()
    slotted = people.trajectories[0].resample(float(model.step_seconds or 0))
    assert model.states is not None, "releases are replayed with a model that knows its states"
    states = model.states.locate(slotted.latitude, slotted.longitude)
    at = dict(zip(slotted.slots.tolist(), np.asarray(states).tolist(), strict=True))
    found = [at.get(slot, -1) for slot in released.slots]
    if -1 in found:
        raise ConfigurationError(
            f"user {user}: the true trajectory has no place within the region at release {found.index(-1) + 1}; "
            "give the data that was released"
        )
    return found
