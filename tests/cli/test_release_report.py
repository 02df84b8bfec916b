"""``dphmm report``: the call of Python behind options."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")

RELEASED = ("release", "walk.csv", "--model", "m.npz", "--policy", "utility:600m", "--epsilon", 1, "-o", "r.csv")
REPORT = ("report", "r.csv", "--model", "m.npz", "-o")


@pytest.mark.usefixtures("blank")
def test_the_page_is_written_and_its_name_said(world, run):
    assert run(*RELEASED).exit_code == 0
    result = run(*REPORT, "page.html", "--policy", "utility:600m", "--seed", 1, "--title", "For the board")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "page.html\n", "")
    assert "<h1>For the board</h1>" in (world / "page.html").read_text()
    everything = ("--policy", "utility:600m", "--epsilon", 1, "--mechanism", "lattice")
    assert run(*REPORT, "again.html", *everything, "--users", "a").exit_code == 0
    assert "1: a" in (world / "again.html").read_text()


@pytest.mark.usefixtures("blank")
def test_true_places_are_on_it_on_demand_alone_and_said(world, run):
    assert run(*RELEASED).exit_code == 0
    refused = run(*REPORT, "page.html", "--policy", "utility:600m", "--true", "walk.csv")
    assert refused.exit_code == 2
    assert "call it PRIVATE-page.html" in refused.stderr
    result = run(*REPORT, "PRIVATE-page.html", "--policy", "utility:600m", "--true", "walk.csv")
    assert result.exit_code == 0
    assert "true places are on this page; keep it to yourself" in result.stderr


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "no policy is given; give the --policy that the releases were made with"),
        (("--policy", "utility:1km"), "was released with settings"),
        (("--policy", "utility:600m", "--users", "c"), "user 'c' has no release; there are a, b"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(world, run, more, message):
    assert run(*RELEASED).exit_code == 0
    result = run(*REPORT, "page.html", *more)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (world / "page.html").exists()
