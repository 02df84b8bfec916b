"""Tests of the papers' figures: the framework, and DPHMM figures that need no data."""

from __future__ import annotations

import csv
import json
import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest
from click.testing import CliRunner
from scipy.spatial import ConvexHull

from dphmm import PolicyGraph
from dphmm.cli import main
from dphmm.errors import InvalidInputError
from dphmm.evaluation.figures import PAPERS, FigureOptions, Panel, PaperFigure, Series, Shape, figure_builders
from dphmm.evaluation.figures import dphmm as paper

F = [(1, 0), (2, 1), (3, 0), (0, 1), (4, 2), (1, 2)]
EDGES = [(1, 2), (3, 4), (3, 5), (4, 5)]


def _get_verdicts(figure: PaperFigure) -> dict[str, str]:
    return {claim.statement: claim.verdict for claim in figure.claims}


def _compute_area(edges):
    """Return the hull's area by SciPy, from both signs of every difference."""
    differences = np.array([np.subtract(F[i], F[j]) for i, j in edges])
    return ConvexHull(np.concatenate([differences, -differences])).volume


@pytest.mark.parametrize("name", PAPERS)
def test_each_paper_has_figures_with_unique_names(name):
    names = [builder.name for builder in figure_builders(name)]
    assert names
    assert len(set(names)) == len(names)


def test_unknown_paper_raises():
    with pytest.raises(InvalidInputError, match="paper"):
        figure_builders("blowfish")


def test_figure_7_has_the_hull_of_scipy():
    figure = paper.build_figure_7(FigureOptions())
    (polygon,) = (shape for shape in figure.panels[1].shapes if shape.label == "sensitivity hull K")
    assert ConvexHull(polygon.points).volume == pytest.approx(_compute_area(EDGES)) == pytest.approx(11)
    verdicts = _get_verdicts(figure)
    assert verdicts.pop("Laplace noise provides no better utility than K-norm noise.") == "does not hold"
    assert set(verdicts.values()) == {"holds"}


def test_errors_in_three_dimensions_agree_with_exact_integrals():
    """E|u|² in a box with half-sides a is Σ a² / 3. Laplace noise of scale 1 has variance 2."""
    box = Fraction(4 * 5, 3) * sum(Fraction(side, 100) ** 2 for side in (98, 1, 1))
    claim = paper.judge_noise_utility()
    assert claim.measured.startswith(f"squared errors {float(box):.4g} (K-norm) and {3 * 2} (Laplace)")
    assert claim.verdict == "does not hold"


def test_figure_9_has_the_areas_of_scipy_and_refutes_its_utility():
    figure = paper.build_figure_9(FigureOptions())
    measured = next(claim.measured for claim in figure.claims if claim.figure == "Figure 9(c)")
    kept = [edge for edge in EDGES if 1 not in edge]
    assert measured == ", ".join(f"s{j + 1}: {_compute_area([*kept, (2, j)]):g}" for j in (3, 5, 4))
    verdicts = _get_verdicts(figure)
    assert verdicts.pop("The graph of least area has the best utility.") == "does not hold"
    assert set(verdicts.values()) == {"holds"}


def test_figure_14_agrees_with_exact_norms():
    """The norm is the least sum of weights on the differences, computed by brute force."""
    figure = paper.build_figure_14(FigureOptions())
    differences = [(Fraction(1), Fraction(0)), (Fraction(1), Fraction(-1))]

    def compute_norm(vector):
        x, y = map(Fraction, vector)
        (a, b), (c, d) = differences
        det = a * d - b * c
        return abs((x * d - y * c) / det) + abs((a * y - b * x) / det)

    expected = [compute_norm(v) for v in ((1, 0), (0, 0), (1, 0), (0, 1), (1, 0), (0, 1))]
    claim = next(claim for claim in figure.claims if "existence" in claim.statement)
    assert claim.measured.startswith(", ".join(f"{float(x):g}" for x in expected))
    assert set(_get_verdicts(figure).values()) == {"holds"}


def test_figure_15_identifies_every_output_with_local_hulls_only():
    figure = paper.build_figure_15(FigureOptions(runs=2000))
    verdicts = _get_verdicts(figure)
    assert verdicts.pop("The example applies to the policy graph of Figure 3(b).") == "does not hold"
    assert set(verdicts.values()) == {"holds"}
    # s4 is at distance 1 from s6 and 2 from s5 in the norm of the hull with the vertices ±(3, 0) and ±(1, 1).
    supremum = 1 / (1 + math.exp(-1) + math.exp(-2))
    resists = next(claim for claim in figure.claims if "resists" in claim.statement)
    assert f"supremum {supremum:.3f}" in resists.measured


def test_figure_15_rejects_variant_with_one_hull(monkeypatch):
    """With one hull for all states instead of local ones, outputs do not identify states."""
    shared = paper.SensitivityHull([np.subtract(F[i], F[j]) for i, j in combinations((3, 4, 5), 2)])
    monkeypatch.setattr(paper, "_build_local_hull", lambda graph, state: shared)
    verdicts = _get_verdicts(paper.build_figure_15(FigureOptions(runs=500)))
    assert verdicts["An output on neither line comes from s6."] == "does not hold"


def test_figure_8_rejects_variant_with_complete_policy(monkeypatch):
    monkeypatch.setattr(paper, "POLICY", PolicyGraph.complete(6))
    assert "does not hold" in _get_verdicts(paper.build_figure_8(FigureOptions())).values()


def test_rows_contain_every_point_of_curves_and_shapes():
    curve = Series("a", [1.0, 2.0], [3.0, 4.0], [2.0, 3.0], [4.0, 5.0])
    shape = Shape("b", "points", np.array([[5.0, 6.0]]))
    rows = list(PaperFigure("x", "", [Panel("p", "", "", [curve], [shape])]).rows())
    assert rows[:2] == [("p", "a", 1.0, 3.0, 2.0, 4.0), ("p", "a", 2.0, 4.0, 3.0, 5.0)]
    assert rows[2][:4] == ("p", "b", 5.0, 6.0)


@pytest.mark.parametrize(
    ("arrays", "words"),
    [(([1.0], [1.0, 2.0]), "one length"), (([1.0], [1.0], [0.5]), "both ends"), (([[1.0]], [[1.0]]), "one length")],
)
def test_series_of_different_lengths_raises(arrays, words):
    with pytest.raises(InvalidInputError, match=words):
        Series("a", *arrays)


@pytest.mark.slow
def test_command_writes_pictures_tables_and_claims(tmp_path):
    pytest.importorskip("matplotlib")
    line = ["figures", "dphmm", "-o", str(tmp_path / "out"), "--only", "figure_7,figure_9", "--json"]
    done = CliRunner().invoke(main, line)
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout)
    assert result["figures"] == ["dphmm_figure_7", "dphmm_figure_9"]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    figures = {f"{name}.{ending}" for name in result["figures"] for ending in ("png", "csv")}
    assert names == figures | {"claims.csv", "figures.html"}
    with (tmp_path / "out" / "claims.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["verdict"] for row in rows] == [claim["verdict"] for claim in result["claims"]]
    assert any(row["verdict"] == "does not hold" and row["reason"] for row in rows)
    page = (tmp_path / "out" / "figures.html").read_text()
    assert page.count("<img") == 2
    again = CliRunner().invoke(main, line)
    assert again.exit_code == 2
    assert CliRunner().invoke(main, [*line, "--overwrite"]).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["blowfish"], "paper"),
        (["dphmm", "--only", "figure_99"], "--only"),
        (["--runs", "0"], "--runs"),
        (["dphmm", "--runs", "1", "--geolife", ".", "--gowalla", "."], "--runs"),
        (["--geolife", "absent"], "--geolife"),
        (["dphmm", "--only", "figure_10"], "dphmm figure_10 requires --geolife and --gowalla"),
        (["landmarks", "--only", "errors", "--gowalla", "."], "landmarks errors requires --geolife\n"),
        (
            ["--only", "errors,geolife"],
            "landmarks errors requires --geolife and --gowalla; counts geolife requires --geo",
        ),
    ],
)
def test_invalid_command_arguments_write_nothing(tmp_path, arguments, words):
    done = CliRunner().invoke(main, ["figures", *arguments, "-o", str(tmp_path / "out")])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert words in done.stderr
    assert not (tmp_path / "out").exists()


def test_failed_figure_leaves_no_folder(tmp_path):
    pytest.importorskip("matplotlib")
    (tmp_path / "data").mkdir()
    line = ["figures", "counts", "--only", "geolife", "--geolife", str(tmp_path / "data"), "-o", str(tmp_path / "out")]
    done = CliRunner().invoke(main, line)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert not (tmp_path / "out").exists()
