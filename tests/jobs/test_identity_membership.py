"""Who was in a model: found where people's own moves make it, and not where a promise or chance hides them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.stats import rankdata

from dphmm.cli import main
from dphmm.errors import ConfigurationError
from dphmm.jobs import Data, audit_membership, learn, synthesize
from dphmm.jobs.identity import MembershipAudit, _means
from dphmm.model.moves import state_sequences
from dphmm.space import Grid

GRID = Grid.over((45.0, 7.0, 45.027, 7.038), 0.5)
SIZE, STEP = GRID.size, 600


def written(path: Path, first: int, count: int, seed: int, steps: int = 150) -> str:
    """People of whom each goes about between a few cells of their own."""
    rng, lines = np.random.default_rng(seed), ["user,time,latitude,longitude"]
    for number in range(first, first + count):
        own = rng.choice(SIZE, 3, replace=False)
        at = own[0]
        for step in range(steps):
            at = rng.choice(own) if rng.random() < 0.2 else at
            latitude, longitude = GRID.latlon([at])[0]
            time = np.datetime64("2024-03-04T00:00:00") + step * np.timedelta64(STEP, "s")
            lines.append(f"u{number},{time}Z,{latitude},{longitude}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def town(tmp_path_factory):
    """30 members and 30 others (seeds 1 and 2), and a model of the members."""
    folder = tmp_path_factory.mktemp("town")
    members, others = written(folder / "in.csv", 0, 30, 1), written(folder / "out.csv", 30, 30, 2)
    model = learn(Data((members,)), GRID, STEP, smoothing=0.01, output=folder / "m.npz").model
    return folder, members, others, model


def test_members_of_a_model_of_counts_are_found_and_people_exchanged_at_random_are_not(town):
    """α = 0.01, 30 and 30 people; the twin has half of each kind on either side (seed 3)."""
    folder, members, others, model = town
    found = audit_membership(model, Data((members,)), Data((others,)))
    assert found.is_exposed
    assert found.area > 0.9
    share, least, most = found.found(0.05)
    assert least <= share <= most
    assert share > 0.5
    every = np.concatenate([found.members, found.others])
    mixed = np.random.default_rng(3).permutation(every)
    chance = MembershipAudit(mixed[:30], mixed[30:], 0.05)
    assert not chance.is_exposed
    assert abs(chance.area - 0.5) < 0.2
    del folder


def test_a_promise_to_whole_people_hides_them_and_bounds_what_is_found(town):
    """Noise of a budget of 1/10 (from the operating system): not told at α = 0.01, but for one run in a hundred."""
    folder, members, others, _ = town
    learn(Data((members,)), GRID, STEP, user_epsilon="0.1", output=folder / "p.npz", overwrite=True)
    found = audit_membership(folder / "p.npz", Data((members,)), Data((others,)))
    assert found.p_value > 0.001
    assert found.epsilon == pytest.approx(0.1)
    assert found.bound(0.05) == pytest.approx(np.exp(0.1) * 0.05)
    assert found.bound(0.99) == 1.0
    assert "The promise to whole people limits it to 5.53 %" in found.in_words()


def test_ratios_are_those_of_a_loop_over_moves(town):
    _, members, _, model = town
    people = Data((members,)).read().trajectories[:3]
    means = _means(model, people)
    moves = model.transition.toarray()
    for person, (slots, states), mean in zip(people, state_sequences(people, GRID, STEP), means, strict=True):
        logs = [
            np.log(max(moves[a, b], 1e-12))
            for a, b, s, t in zip(states, states[1:], slots, slots[1:], strict=False)
            if t - s == 1 and a >= 0 and b >= 0
        ]
        assert mean == pytest.approx(np.mean(logs)), person.user


def test_the_area_and_the_curve_are_those_of_ranks():
    rng = np.random.default_rng(4)
    members, others = rng.integers(0, 6, 25).astype(float), rng.integers(0, 5, 40).astype(float)
    found = MembershipAudit(members, others, 0.05)
    ranks = rankdata(np.concatenate([members, others]))[:25]
    assert found.area == pytest.approx((ranks.sum() - 25 * 26 / 2) / (25 * 40))
    x, y = found.curve()
    assert (x[0], y[0], x[-1], y[-1]) == (0, 0, 1, 1)
    assert np.trapezoid(y, x) == pytest.approx(found.area)
    assert found.found(1.0)[0] == 1.0
    share, *_ = found.found(0.1)
    threshold = np.sort(others)[::-1][4]
    assert share == (members > threshold).mean()
    assert (others > threshold).mean() <= 0.1


def test_of_people_who_do_not_exist_at_the_command(town):
    folder, members, others, _ = town
    synthesize(folder / "m.npz", folder / "synthetic.csv", people=60, days=1, rng=5, overwrite=True)
    line = ["audit", "membership", str(folder / "m.npz"), "--members", members, "--others", others]
    direct = CliRunner().invoke(main, [*line, "--json"])
    assert direct.exit_code == 1, direct.output
    assert json.loads(direct.stdout)["rates"][0]["promised_most"] == 1.0
    report = str(folder / "PRIVATE-members.html")
    drawn = CliRunner().invoke(main, [*line, "--synthetic", str(folder / "synthetic.csv"), "--report", report])
    assert drawn.exit_code in (0, 1), drawn.output
    assert "area under the curve" in " ".join(drawn.output.split())
    assert Path(report).read_text().count("data:image/png") == 1
    few = CliRunner().invoke(main, [*line, "--member-users", "u0,u1"])
    assert few.exit_code == 2
    assert "2 members move within the region; give at least 5" in " ".join(few.output.split())


def test_what_cannot_be_asked_is_refused(town):
    _, members, others, model = town
    with pytest.raises(ConfigurationError, match="user u0 is among members and others"):
        audit_membership(model, Data((members,)), Data((members,)))
    with pytest.raises(ConfigurationError, match="alpha is 1"):
        audit_membership(model, Data((members,)), Data((others,)), alpha=1.0)
