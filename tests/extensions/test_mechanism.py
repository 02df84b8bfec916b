"""A mechanism outside the package passes the checks of shipped ones. Broken variants fail."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import traceback

import numpy as np
import pytest
from scipy import integrate, stats

from dphmm import KNormMechanism, LatticeKNormMechanism, MarkovModel, Releaser, ReleaseSettings, Trajectory
from dphmm.certificate.canonical_forms import check_certifiable
from dphmm.errors import ConfigurationError, GuaranteeError, MissingExtensionError
from dphmm.evaluation import parse_config
from dphmm.extensions import Registry
from dphmm.geometry.gauge import Gauge
from dphmm.jobs import audit_session, build_blank_model, region, release
from dphmm.jobs.release.guarantees import summarize_guarantee
from dphmm.mechanisms import check_mechanism, register_mechanism
from dphmm.mechanisms.base import Mechanism
from dphmm.mechanisms.conformance import is_shipped
from dphmm.mechanisms.registry import MECHANISM_REGISTRY
from dphmm.release import Session, SessionStore
from dphmm.release.record import ReleaseRecord
from tests.command_line import run
from tests.extensions.pages import forget, install, read_file
from tests.mechanisms.test_registry import EPSILON, EVERY, HULL
from tests.running_example import F, build_graph

CODE = read_file("own_mechanism.md", "elliptic_noise.py")
POINTS = np.array([[0.0, 0], [3, 0], [1, 2], [0, 1], [2, 2], [5, 6]])
MODEL = MarkovModel(np.full((6, 6), 1 / 6), np.full(6, 1 / 6))


@pytest.fixture
def elliptic(tmp_path, monkeypatch):
    """Install the mechanism of the page in a folder, and return its class."""
    install(tmp_path, "elliptic_noise", CODE, "dphmm.mechanisms", "elliptic", "EllipticMechanism")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(MECHANISM_REGISTRY, "_classes", {})
    forget("elliptic_noise")
    yield MECHANISM_REGISTRY.find("elliptic")
    forget("elliptic_noise")


def build_engine(mechanism, **settings) -> Releaser:
    return Releaser(MODEL, F, build_graph(), 0.7, mechanism, rng=3, **settings)


def test_code_is_short_and_outside_the_package(elliptic):
    assert len(CODE.splitlines()) <= 60
    assert "dphmm" not in elliptic.__module__


def test_shapes_and_density_match_protocol(elliptic):
    mechanism = elliptic.from_hull(HULL, EPSILON)
    assert mechanism.sample([[1, 2], [3, 4], [5, 6]], rng=0, size=4).shape == (4, 3, 2)
    assert mechanism.sample([1, 2], rng=0, size=0).shape == (0, 2)
    assert mechanism.log_density([1, 2], [[1, 2], [3, 4], [5, 6]]).shape == (3,)
    edge = np.linspace(-120, 120, 1201)
    grid = np.stack(np.meshgrid(edge, edge), axis=-1)
    density = np.exp(mechanism.log_density(grid.reshape(-1, 2), [0.0, 0.0])).reshape(1201, 1201)
    assert integrate.simpson(integrate.simpson(density, edge), edge) == pytest.approx(1.0, abs=2e-3)
    squares = np.square(grid).sum(axis=-1)
    error = integrate.simpson(integrate.simpson(density * squares, edge), edge)
    assert mechanism.squared_error == pytest.approx(error, rel=5e-3)
    # Kolmogorov-Smirnov, alpha 1e-6, n = 20,000, seed 1: the norm of noise is Gamma(2).
    norms = mechanism.norm(mechanism.sample([0.0, 0.0], 1, 20_000))
    assert stats.kstest(norms, stats.gamma(2, scale=1 / EPSILON).cdf).pvalue > 1e-6


def test_hull_lies_in_gauge(elliptic):
    mechanism = elliptic.from_hull(HULL, EPSILON)
    assert mechanism.gauge(EPSILON)(np.asarray(HULL.vertices, float)).max() <= 1
    assert (mechanism.privacy_loss(HULL.vertices, [0, 0]) <= EPSILON * (1 + 1e-12)).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["elliptic", "lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace"])
def test_shipped_and_registered_mechanisms_pass_the_same_checks(elliptic, name):
    mechanism = elliptic.from_hull(HULL, EPSILON) if name == "elliptic" else EVERY[name]
    points = POINTS.astype(np.int64) if name == "lattice" else POINTS
    check_mechanism(mechanism, points)
    assert is_shipped(mechanism) == (name != "elliptic")


@pytest.mark.slow
def test_record_settings_and_hash_contain_name_and_version(elliptic):
    record = build_engine("elliptic").release(4)
    assert (record.mechanism, record.soundness, record.is_exact) == ("elliptic@1.0", "trusted", False)
    assert json.loads(record.to_json())["soundness"] == "trusted"
    assert ReleaseRecord.from_json(record.to_json()) == record
    settings = ReleaseSettings("complete", 1.0, "elliptic")
    assert settings == ReleaseSettings("complete", 1.0, "elliptic@1.0")
    assert ReleaseSettings.from_toml(settings.to_toml()) == settings
    elliptic.version = "1.1"
    assert ReleaseSettings("complete", 1.0, "elliptic").content_hash != settings.content_hash
    with pytest.raises(MissingExtensionError, match=r"'elliptic' 1\.0 must be installed.*version 1\.1 is installed"):
        ReleaseSettings("complete", 1.0, "elliptic@1.0")


def test_shipped_record_is_unchanged():
    record = build_engine("k-norm").release(4)
    assert record.soundness == "verified"
    assert "soundness" not in json.loads(record.to_json())
    assert ReleaseRecord.from_json(record.to_json()) == record


def test_unknown_name_is_refused():
    for name in ("eliptic", "elliptic@1.0"):
        with pytest.raises(ConfigurationError, match=r"eliptic|elliptic"):
            ReleaseSettings("complete", 1.0, name)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ValueError('no\\ndevice')", r"cannot be imported: ValueError: no device"),
        ("def (", r"cannot be imported: SyntaxError"),
        ("import sys\nsys.exit('no device')", r"cannot be imported: SystemExit: no device"),
        ("Noise = 3", r"cannot be registered: .*must inherit from Mechanism"),
        ("from elliptic_noise import EllipticMechanism as Noise", r"class of this name, got 'elliptic'"),
        (
            "import elliptic_noise\nclass Noise(elliptic_noise.EllipticMechanism):\n"
            "    name, version, noise_body = 'broken', '1', 'sphere'",
            r"noise_body of broken_noise\.Noise must be one of hull, cross-polytope, disc, got 'sphere'",
        ),
    ],
)
def test_command_names_broken_entry_point(elliptic, tmp_path, code, message):
    install(tmp_path, "broken_noise", code, "dphmm.mechanisms", "broken", "Noise")
    forget("broken_noise")
    result = run("release", "a.csv", "--model", "m.npz", "--mechanism", "broken@1", "-o", "b.csv")
    assert result.exit_code == 2
    assert re.search(rf"^Error: mechanism 'broken' 1 must be .*, but broken_noise:Noise .*{message}", result.output)
    assert result.output.count("\n") == 1
    assert MECHANISM_REGISTRY.find("elliptic") is elliptic


def test_name_of_two_packages_is_refused(elliptic, tmp_path):
    for module in ("first_noise", "second_noise"):
        install(tmp_path, module, "", "dphmm.mechanisms", "common", "Noise")
    with pytest.raises(MissingExtensionError, match=r"first_noise:Noise and second_noise:Noise are declared"):
        MECHANISM_REGISTRY.find("common")


@pytest.mark.parametrize("error", [float("nan"), -1.0])
def test_invalid_squared_error_is_refused_before_the_release(elliptic, monkeypatch, error):
    monkeypatch.setattr(elliptic, "squared_error", error)
    engine = build_engine("elliptic")
    with pytest.raises(GuaranteeError, match="squared error of at least 0"):
        engine.release(4)
    assert engine.filter_state.count == 0


def fail(*_):
    raise ZeroDivisionError("at state 4\nhere")


@pytest.mark.parametrize(
    ("method", "replacement", "message"),
    [
        ("from_hull", classmethod(fail), "'elliptic@1.0' failed: ZeroDivisionError: at state 4 here"),
        ("norm", fail, "'elliptic@1.0' failed: ZeroDivisionError: at state 4 here"),
        ("gauge", fail, "'elliptic@1.0' failed: ZeroDivisionError: at state 4 here"),
        ("noise", lambda *_: np.zeros((1, 1)), "'elliptic@1.0' failed: ValueError: cannot reshape"),
        ("noise", lambda self, count, _: np.full((count, 2), np.nan), "'elliptic@1.0' failed: CoordinateError"),
    ],
)
def test_failures_name_the_mechanism(elliptic, monkeypatch, method, replacement, message):
    monkeypatch.setattr(elliptic, method, replacement)
    engine = build_engine("elliptic")
    with pytest.raises(GuaranteeError, match=f"mechanism {message}") as caught:
        engine.release(4)
    assert "\n" not in str(caught.value)
    assert engine.filter_state.count == 0


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (fail, "failed: ZeroDivisionError; the release"),
        (lambda *_: np.zeros(3), "must draw 2 finite numbers"),
        (lambda *_: np.array([0.0, np.inf]), "must draw 2 finite numbers"),
    ],
)
def test_invalid_draw_is_refused(elliptic, monkeypatch, draw, message):
    engine = build_engine("elliptic")
    engine.release(4)
    monkeypatch.setattr(elliptic, "draw", draw)
    with pytest.raises(GuaranteeError, match=f"mechanism 'elliptic@1.0' {message}") as caught:
        engine.release(4)
    assert "at state 4" not in "".join(traceback.format_exception(caught.value))
    assert engine.filter_state.count == 1


def test_exact_mechanism_must_draw_integers(elliptic, monkeypatch):
    monkeypatch.setattr(elliptic, "is_exact", True)
    with pytest.raises(GuaranteeError, match="must draw 2 finite integers"):
        build_engine("elliptic").release(4)


def test_session_names_missing_mechanism(elliptic, tmp_path, monkeypatch):
    with SessionStore(tmp_path / "users.db") as store, Session.open(store, "ann", build_engine("elliptic")) as session:
        session.release(4, 0)
    monkeypatch.setattr(MECHANISM_REGISTRY, "find", Registry(Mechanism, "dphmm.absent", ()).find)
    result = run("session", "list", str(tmp_path / "users.db"))
    assert result.exit_code == 2
    assert "users.db: session 'ann': absent 'elliptic' 1.0 must be installed" in result.output


def test_guarantee_states_what_is_trusted(elliptic):
    row = {"user": "ann", "epsilon_total": 1.0, "max_epsilon_24h": 1.0}
    for mechanism, is_trusted in (("elliptic", True), ("k-norm", False)):
        guarantee, _ = summarize_guarantee([row], ReleaseSettings("complete", 1.0, mechanism), True)
        assert ("the privacy loss that mechanism elliptic@1.0 of another package states" in guarantee) == is_trusted


def test_audit_states_what_is_trusted(elliptic, tmp_path):
    model = build_blank_model(region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=2)).model
    times = ["2024-03-07T08:00", "2024-03-07T09:00"]
    track = Trajectory("ann", times, [45.0, 45.0], [-30.0, -30.0])
    for mechanism, is_trusted in (("elliptic", True), ("k-norm", False)):
        store = tmp_path / f"{mechanism}.db"
        release(track, model, ReleaseSettings("complete", 1.0, mechanism), session=store)
        assert ("privacy loss that elliptic@1.0 states" in audit_session(store, model).describe()) == is_trusted


def test_evaluation_accepts_registered_mechanism(elliptic):
    keys = {"data": ["x"], "grid": "geolife"}
    config = parse_config({**keys, "mechanisms": ["k-norm", "elliptic"]})
    names = {setting.release_settings.mechanism for setting in config.settings()}
    assert names == {"lattice", "k-norm", "elliptic@1.0"}
    with pytest.raises(ConfigurationError, match=r"mechanisms.*'eliptic' must be installed"):
        parse_config({**keys, "mechanisms": ["eliptic"]})


def test_command_names_missing_mechanism():
    arguments = ["release", "a.csv", "--model", "m.npz", "--mechanism", "absent@1.0", "-o", "b.csv"]
    result = run(*arguments)
    assert result.exit_code == 2
    assert "mechanism 'absent' 1.0 must be installed or registered" in result.output


@pytest.mark.slow
def test_pickled_engine_continues_equally(elliptic):
    engine = build_engine("elliptic")
    engine.release(4)
    copy = pickle.loads(pickle.dumps(engine))
    assert copy.release(2) == engine.release(2)


@pytest.mark.slow
def test_another_process_finds_entry_point(elliptic, tmp_path):
    program = """
import sys
from dphmm import ReleaseSettings
assert "elliptic_noise" not in sys.modules
print(ReleaseSettings("complete", 1.0, "elliptic").mechanism)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": f"{tmp_path}:{':'.join(sys.path)}"},
    )
    assert done.stdout == "elliptic@1.0\n", done.stderr


def test_certificate_is_refused(elliptic):
    with pytest.raises(ConfigurationError, match=r"certified.*'elliptic@1\.0'"):
        check_certifiable(build_engine("elliptic"))


def build_broken_variants(elliptic):
    class LargeGauge(elliptic):
        def gauge(self, loss, rounding=0.0):
            return Gauge.from_ellipsoid(self.axes, 1.01 * loss / self.epsilon, rounding)

    class SmallLoss(elliptic):
        def privacy_loss(self, x, y):
            return 0.98 * super().privacy_loss(x, y)

        def log_density(self, z, x):
            return -super().privacy_loss(z, x) - self.log_normaliser

    class HalfNoise(elliptic):
        def noise(self, count, source):
            return super().noise(count, source) / 2

    class HalfDraw(elliptic):
        def draw(self, value, source):
            return (value + super().draw(value, source)) / 2

    class OtherDensity(elliptic):
        def unchecked_log_density(self, z, values):
            return 0.5 * self.log_density(z, values)

    return [LargeGauge, SmallLoss, HalfNoise, HalfDraw, OtherDensity]


@pytest.mark.slow
def test_broken_variants_are_caught_before_the_release(elliptic):
    """The samples have alpha 1e-9, n = 4,096 and a fixed seed."""
    for broken in build_broken_variants(elliptic):
        broken.name, broken.version = "broken", "1"
        MECHANISM_REGISTRY._classes.pop("broken", None)
        register_mechanism(broken)
        with pytest.raises(GuaranteeError, match=f"^{broken.__name__} "):
            check_mechanism(broken.from_hull(HULL, EPSILON), POINTS)
        with pytest.raises(GuaranteeError, match=f"^{broken.__name__} "):
            build_engine("broken").release(4)


@pytest.mark.slow
def test_samples_are_checked_after_a_singleton_too(elliptic):
    """The first constraint set has a single state, which gives no pair of points."""

    class Short(elliptic):
        name, version = "short", "1"

        def noise(self, count, source):
            return super().noise(count, source) / 2

    register_mechanism(Short)
    start = np.eye(6)[4]
    model = MarkovModel(np.full((6, 6), 1 / 6), start)
    engine = Releaser(model, F, build_graph(), 0.7, "short", rng=3, allow_singleton=True)
    assert engine.release(4).is_singleton
    with pytest.raises(GuaranteeError, match=r"^Short samples"):
        engine.release(4)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["noise", "draw"])
def test_samples_of_later_bodies_are_checked_too(elliptic, method):
    """The mechanism follows its density for the first noise body only."""

    class Late(elliptic):
        name, version = "late", "1"

        def noise(self, count, source):
            return super().noise(count, source) / (1 if method == "draw" or self.epsilon == 0.7 else 2)

        def draw(self, value, source):
            noisy = super().draw(value, source)
            return noisy if method == "noise" or self.epsilon == 0.7 else np.asarray(value, dtype=float)

    register_mechanism(Late)
    engine = build_engine("late")
    engine.release(4)
    with pytest.raises(GuaranteeError, match=r"^Late samples"):
        engine.release(4, epsilon=0.9)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_few_samples_reject_no_correct_noise(number):
    check_mechanism(EVERY["k-norm"], POINTS, samples=number)
    check_mechanism(EVERY["k-norm"], POINTS, draws=number)


@pytest.mark.slow
def test_correct_samples_of_later_bodies_are_accepted(elliptic):
    engine = build_engine("elliptic")
    for epsilon in np.geomspace(0.01, 30, 20):
        engine.release(4, epsilon=float(epsilon))


@pytest.mark.slow
def test_undetectable_lie_is_stated_as_trusted(elliptic):
    """A backdoor escapes every sample. The record does not call such noise verified."""

    class Backdoor(elliptic):
        name, version = "backdoor", "1"

        def draw(self, value, source):
            return (
                np.asarray(value)
                if value[0] == 4 and source.sample_uniform(1)[0] < 1e-6
                else super().draw(value, source)
            )

    register_mechanism(Backdoor)
    assert build_engine("backdoor").release(4).soundness == "trusted"


def test_replaced_method_does_not_publish_shipped_name(monkeypatch):
    class Quiet(KNormMechanism):
        def noise(self, count, source):
            return 0 * super().noise(count, source)

    engine = build_engine("k-norm")
    monkeypatch.setattr("dphmm.release.step_noise_builder.norm_noise.KNormMechanism", Quiet)
    with pytest.raises(GuaranteeError, match=r"Quiet.*'k-norm'.*registered"):
        engine.release(4)
    monkeypatch.undo()
    monkeypatch.setattr(LatticeKNormMechanism, "draw", lambda _, value, __: value)
    with pytest.raises(GuaranteeError, match=r"LatticeKNormMechanism.*'lattice'"):
        build_engine("lattice").release(4)


def test_engine_with_replaced_method_adds_its_name():
    class Loud(Releaser):
        def draw(self, plan, state):
            return super().draw(plan, state)

    class Same(Releaser):
        """Only documentation."""

    for kind, suffix in ((Loud, "+tests.extensions.test_mechanism."), (Same, "")):
        engine = kind(MODEL, F, build_graph(), 0.7, "k-norm", rng=3)
        record = engine.release(4)
        assert record.mechanism.startswith(f"k-norm{suffix}")
        assert record.soundness == ("trusted" if suffix else "verified")
        assert (record.settings_hash == engine.settings.content_hash) == (not suffix)
        assert type(engine.for_query(2 * np.asarray(F))) is kind


@pytest.mark.parametrize(
    ("name", "version"), [("k-norm", "1"), ("Elliptic", "1"), ("", "1"), ("own", ""), ("own", "1 0"), ("own", None)]
)
def test_invalid_registration_is_refused(monkeypatch, name, version):
    monkeypatch.setattr(MECHANISM_REGISTRY, "_classes", {})
    with pytest.raises(ConfigurationError, match=r"name|version"):
        register_mechanism(type("Own", (KNormMechanism,), {"name": name, "version": version}))
    with pytest.raises(ConfigurationError, match="inherit"):
        register_mechanism(int)


def test_name_of_another_class_is_refused(monkeypatch):
    monkeypatch.setattr(MECHANISM_REGISTRY, "_classes", {})
    register_mechanism(type("First", (KNormMechanism,), {"name": "own", "version": "1"}))
    with pytest.raises(ConfigurationError, match=r"name 'own' of .*Second is that of .*First"):
        register_mechanism(type("Second", (KNormMechanism,), {"name": "own", "version": "1"}))
    with pytest.raises(ConfigurationError, match="from_hull"):
        Mechanism.from_hull(HULL, 1.0)


@pytest.mark.slow
def test_exact_mechanism_gets_lattice_values(monkeypatch):
    monkeypatch.setattr(MECHANISM_REGISTRY, "_classes", {})

    class Steps(LatticeKNormMechanism):
        name = "steps"
        version = "2"
        is_exact = True

        @classmethod
        def from_hull(cls, hull, epsilon):
            return cls(hull, epsilon)

    register_mechanism(Steps)
    registered, shipped = (
        Releaser(MODEL, F, build_graph(), 0.7, name, rng=3).release(4) for name in ("steps", "lattice")
    )
    assert registered.is_exact
    assert registered.released == shipped.released
    assert registered.soundness == "trusted"
