"""The page on epsilon: its commands run as they stand, and its words about them are true of a run."""

from __future__ import annotations

import csv
import re
import shutil

from dphmm.writers import read_releases
from tests.documents import ROOT, run_line

PAGE = (ROOT / "docs" / "epsilon.md").read_text(encoding="utf-8")


def test_the_page_s_command_lines_run_and_its_story_is_true(tmp_path):
    lines = re.findall(r"^\$ (.+)$", PAGE, flags=re.MULTILINE)
    assert len(lines) == 11
    shutil.copytree(ROOT / "data", tmp_path / "data")
    for line in lines:
        # Fewer simulated people stand for those of the page, who take ten seconds of a processor.
        fewer = line.replace(
            "--adversary-error 500m --over 4h --people 8", "--adversary-error 200m --over 30m --people 3"
        )
        run_line(fewer, tmp_path)
    assert (tmp_path / "trade-off.png").stat().st_size > 0
    first, lasting = (read_releases(tmp_path / f"{name}.csv") for name in ("first", "lasting"))
    # Over 808 releases the median is far within these: the page tells 404 m and 1,242 m.
    assert 300 < sorted(first["estimate_radius_m"])[404] < 500
    assert first["epsilon_last_day"].max() == 285
    assert lasting["epsilon_last_day"].max() <= 10
    assert sorted(lasting["estimate_radius_m"])[len(lasting) // 2] > 1000
    with (tmp_path / "days.csv").open(encoding="utf-8") as file:
        days = list(csv.DictReader(file))
    assert [row["day"] for row in days] == ["2024-03-07", "2024-03-08", "2024-03-09"]
    assert all(float(row["adversary_error_m_median_in_hindsight"]) < 1000 for row in days)


def test_the_page_s_python_is_right():
    code = PAGE.partition("```python\n")[2].partition("```")[0]
    told = {}
    exec(
        code.replace("epsilon_for_error(K", "error = epsilon_for_error(K").replace(
            "epsilon_for_odds(2", "odds = epsilon_for_odds(2"
        ),
        told,
    )
    assert (round(told["error"], 5), round(told["odds"], 3)) == (3.27525, 0.693)
