"""Tests of ``dphmm report``: it exposes the Python function as options."""

from __future__ import annotations

import pytest

pytest.importorskip("matplotlib")

RELEASED = ("release", "walk.csv", "--model", "m.npz", "--policy", "utility:600m", "--epsilon", 1, "-o", "r.csv")
REPORT = ("report", "r.csv", "--model", "m.npz", "-o")


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_page_is_written_and_its_name_printed(world, run):
    assert run(*RELEASED).exit_code == 0
    result = run(*REPORT, "page.html", "--policy", "utility:600m", "--seed", 1, "--title", "For the board")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "page.html\n", "")
    page = (world / "page.html").read_text()
    assert "<h1>For the board</h1>" in page
    assert "unprotected timesteps" not in page, "there are none"
    everything = ("--policy", "utility:600m", "--epsilon", 1, "--mechanism", "lattice")
    assert run(*REPORT, "again.html", *everything, "--users", "a").exit_code == 0
    assert "1: a" in (world / "again.html").read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_true_locations_are_included_only_on_request_with_warning(world, run):
    assert run(*RELEASED).exit_code == 0
    refused = run(*REPORT, "page.html", "--policy", "utility:600m", "--true", "walk.csv")
    assert refused.exit_code == 2
    assert "use PRIVATE-page.html" in refused.stderr
    result = run(*REPORT, "PRIVATE-page.html", "--policy", "utility:600m", "--true", "walk.csv")
    assert result.exit_code == 0
    assert "Warning: PRIVATE-page.html shows true locations. Do not publish it." in result.stderr


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ((), "or they must be the defaults: use --policy"),
        (("--policy", "utility:1km"), "was released with settings"),
        (("--policy", "utility:600m", "--users", "c"), "user 'c' has no release; the releases contain a, b"),
    ],
)
def test_incompatible_options_print_one_line(world, run, more, message):
    assert run(*RELEASED).exit_code == 0
    result = run(*REPORT, "page.html", *more)
    assert result.exit_code == 2
    assert message in result.stderr
    assert not (world / "page.html").exists()
