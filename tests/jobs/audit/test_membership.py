"""Tests of membership audits: members are found in raw models, not in private ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata

from dphmm.errors import ConfigurationError
from dphmm.jobs import Data, audit_membership, learn, synthesize
from dphmm.jobs.audit.membership import MembershipAudit, _compute_mean_log_probabilities
from dphmm.model.observed_moves import state_sequences
from dphmm.space import Grid
from tests import command_line

GRID = Grid.over((45.0, 7.0, 45.027, 7.038), 0.5)
SIZE = GRID.size
STEP = 600


def write_tracks(path: Path, first: int, count: int, seed: int, steps: int = 150) -> str:
    """Write tracks of users who each move between three cells."""
    rng, lines = np.random.default_rng(seed), ["user,time,latitude,longitude"]
    for number in range(first, first + count):
        cells = rng.choice(SIZE, 3, replace=False)
        at = cells[0]
        for step in range(steps):
            at = rng.choice(cells) if rng.random() < 0.2 else at
            latitude, longitude = GRID.latlon([at])[0]
            time = np.datetime64("2024-03-04T00:00:00") + step * np.timedelta64(STEP, "s")
            lines.append(f"u{number},{time}Z,{latitude},{longitude}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """Return 30 members and 30 other users (seeds 1 and 2), and a model of the members."""
    folder = tmp_path_factory.mktemp("town")
    members, others = write_tracks(folder / "in.csv", 0, 30, 1), write_tracks(folder / "out.csv", 30, 30, 2)
    model = learn(Data((members,)), GRID, STEP, smoothing=0.01, output=folder / "m.npz").model
    return folder, members, others, model


@pytest.mark.slow
def test_members_are_found_in_count_model_and_not_after_random_exchange(town):
    """α = 0.01, 30 users in each group. The random exchange mixes both groups (seed 3)."""
    folder, members, others, model = town
    audit_result = audit_membership(model, Data((members,)), Data((others,)))
    assert audit_result.is_exposed
    assert audit_result.area_under_curve > 0.9
    share, minimum, maximum = audit_result.estimate_detection_rate(0.05)
    assert minimum <= share <= maximum
    assert share > 0.5
    scores = np.concatenate([audit_result.members, audit_result.others])
    mixed = np.random.default_rng(3).permutation(scores)
    chance = MembershipAudit(mixed[:30], mixed[30:], 0.05)
    assert not chance.is_exposed
    assert abs(chance.area_under_curve - 0.5) < 0.2
    del folder


@pytest.mark.slow
def test_user_level_privacy_hides_members_and_bounds_the_attack(town):
    """The noise (epsilon 1/10) is not seeded: about one run in a thousand fails by chance."""
    folder, members, others, _ = town
    learn(Data((members,)), GRID, STEP, user_epsilon="0.1", output=folder / "p.npz", overwrite=True)
    audit_result = audit_membership(folder / "p.npz", Data((members,)), Data((others,)))
    assert audit_result.p_value > 0.001
    assert audit_result.epsilon == pytest.approx(0.1)
    assert audit_result.max_detection_rate(0.05) == pytest.approx(np.exp(0.1) * 0.05)
    assert audit_result.max_detection_rate(0.99) == 1.0
    assert "The user-level guarantee limits this rate to 5.53 %" in audit_result.describe()


def test_ratios_match_loop_over_moves(town):
    _, members, _, model = town
    tracks = Data((members,)).read().trajectories[:3]
    means = _compute_mean_log_probabilities(model, tracks)
    moves = model.transition.toarray()
    for track, (slots, states), mean in zip(tracks, state_sequences(tracks, GRID, STEP), means, strict=True):
        logs = [
            np.log(max(moves[a, b], 1e-12))
            for a, b, s, t in zip(states, states[1:], slots, slots[1:], strict=False)
            if t - s == 1 and a >= 0 and b >= 0
        ]
        assert mean == pytest.approx(np.mean(logs)), track.user


def test_area_and_curve_match_rank_statistics():
    rng = np.random.default_rng(4)
    members, others = rng.integers(0, 6, 25).astype(float), rng.integers(0, 5, 40).astype(float)
    audit_result = MembershipAudit(members, others, 0.05)
    ranks = rankdata(np.concatenate([members, others]))[:25]
    assert audit_result.area_under_curve == pytest.approx((ranks.sum() - 25 * 26 / 2) / (25 * 40))
    x, y = audit_result.compute_roc_curve()
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(y, x) == pytest.approx(audit_result.area_under_curve)
    assert audit_result.estimate_detection_rate(1.0)[0] == 1.0
    share, *_ = audit_result.estimate_detection_rate(0.1)
    threshold = np.sort(others)[::-1][4]
    assert share == (members > threshold).mean()
    assert (others > threshold).mean() <= 0.1


@pytest.mark.parametrize(("alpha", "limit"), [(0.01, 1 - 0.005 ** (1 / 10)), (0.1, 0.5442871)])
def test_uncertainty_of_threshold_is_stated(alpha, limit):
    """The limits are those of ``scipy.stats.binomtest`` at 99 %, for 0 and 1 of 10."""
    audit_result = MembershipAudit(np.arange(10.0) + 5, np.arange(10.0), alpha, 1.0)
    assert audit_result.estimate_max_false_positive_rate(alpha) == pytest.approx(limit)
    words = f"up to {100 * limit:.0f} % (99 % confidence), for which the guarantee permits up to 100 %"
    assert words in audit_result.describe()


def test_command_names_its_key_for_false_positive_rate(town):
    folder, members, others, _ = town
    line = ["audit", "membership", str(folder / "m.npz"), "--members", members, "--others", others]
    refused = command_line.run(*line, {"false_positive_rate": 1})
    assert refused.exit_code == 2
    assert "key 'false_positive_rate' must be in (0, 1), got 1.0" in refused.output


@pytest.mark.slow
def test_membership_command_accepts_synthetic_users_and_writes_report(town):
    folder, members, others, _ = town
    synthesize(folder / "m.npz", folder / "synthetic.csv", num_users=60, days=1, rng=5, overwrite=True)
    line = ["audit", "membership", str(folder / "m.npz"), "--members", members, "--others", others]
    direct = command_line.run(*line, "--json")
    assert direct.exit_code == 1, direct.output
    assert json.loads(direct.stdout)["rates"][0]["guaranteed_max_detection_rate"] == 1.0
    report = str(folder / "PRIVATE-members.html")
    with_report = command_line.run(*line, "--synthetic", str(folder / "synthetic.csv"), "--report", report)
    assert with_report.exit_code in (0, 1), with_report.output
    assert "area under the ROC curve" in " ".join(with_report.output.split())
    assert Path(report).read_text().count("data:image/png") == 1
    for users, message in (({"member_users": ["u0", "u1"]}, "members{}2"), ({"other_users": ["u30"]}, "others{}1")):
        few = command_line.run(*line, users)
        assert few.exit_code == 2
        expected = message.format(" must contain at least 5 users that move in the region, got ")
        assert expected in " ".join(few.output.split())


def test_overlapping_groups_or_invalid_alpha_raise(town):
    _, members, others, model = town
    with pytest.raises(ConfigurationError, match="user u0"):
        audit_membership(model, Data((members,)), Data((members,)))
    with pytest.raises(ConfigurationError, match=r"alpha must be in \(0, 1\)"):
        audit_membership(model, Data((members,)), Data((others,)), alpha=1.0)


def test_others_on_list_of_training_users_raise_and_unlisted_members_are_stated(town):
    folder, members, others, _ = town
    with pytest.raises(ConfigurationError, match="others must not be training users of the model, got user u0"):
        audit_membership(folder / "m.npz", Data((others,)), Data((members,)))
    mixed = write_tracks(folder / "mixed.csv", 25, 10, 4)  # u25 to u29 are training users, u30 to u34 are not
    rest = write_tracks(folder / "rest.csv", 40, 6, 5)
    audit_result = audit_membership(folder / "m.npz", Data((mixed,)), Data((rest,)))
    assert audit_result.to_dict()["num_unlisted_members"] == 5
    assert "5 of 10 members are not in the list of the model's training users" in audit_result.describe()
    audit_result = audit_membership(town[3], Data((mixed,)), Data((rest,)))
    assert audit_result.to_dict()["num_unlisted_members"] is None
