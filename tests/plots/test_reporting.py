"""The page for colleagues: one file, whole at any width and on paper, with no true place unless it was asked for."""

from __future__ import annotations

import re
import stat

import numpy as np
import pytest

from dphmm import ReleaseSettings
from dphmm.errors import ConfigurationError, OutputError
from dphmm.jobs import Data, batch, learn, load_model, region, release
from dphmm.jobs.guarantees import promise_of
from tests.pages import DESK, PHONE, looked_at

pytest.importorskip("matplotlib")

from dphmm.plots import report, reporting
from dphmm.writers import ReleaseTable, read_releases

TOWN = "data/sample/geolife"
SETTINGS = ReleaseSettings("utility:1km", 0.5)
SECRET = "very-long-names-of-people-that-nothing-breaks-" * 3


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with releases of two people of the sample, and the model that they were made with."""
    folder = tmp_path_factory.mktemp("report")
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=0.5)
    others = Data((TOWN,), exclude_users=("000", "001"))
    model = learn(others, space, step_seconds=900, output=folder / "m.npz").model
    release(Data((TOWN,), users=("000", "001")), model, SETTINGS, folder / "r.csv")
    return folder


def page_of(made, name="page.html", **options):
    path = report(made / "r.csv", made / name, made / "m.npz", "utility:1km", rng=0, overwrite=True, **options)
    return path, path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def plain(made):
    """The page without options."""
    return page_of(made, "plain.html")


@pytest.fixture(scope="module")
def wide(made):
    """One whose title has no space to break at."""
    return page_of(made, "wide.html", title=SECRET)[0]


def test_a_page_is_one_file_with_every_part(plain):
    _, page = plain
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [
        "What is promised",
        "Before and after",
        "What the releases told, in metres and odds",
        "Where they tell more than they sound like",
        "What was published",
        "What is not promised",
        "How it was made",
    ]
    assert page.count("<li>") > 8
    assert page.count('src="data:image/png;base64,') == 3
    assert not re.search(r"https?://", page)
    assert "an invented person" in page
    assert "PRIVATE" not in page


@pytest.mark.usefixtures("blank")
def test_a_page_says_nothing_of_true_places_unless_they_are_asked_for(made, monkeypatch):
    """Nothing is read but the releases and the model; with true places the page says so above everything."""
    read = []
    monkeypatch.setattr(Data, "read", lambda self: read.append(self))
    page_of(made)
    assert read == []
    monkeypatch.undo()
    with pytest.raises(ConfigurationError, match=r"the file tells true places; call it .*PRIVATE-page\.html"):
        page_of(made, true=TOWN)
    path, page = page_of(made, "PRIVATE-page.html", true=TOWN)
    assert page.index('<p class="banner">PRIVATE') < page.index("<h1>")
    assert "invented" not in page
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_places_that_are_released_as_they_are_are_not_called_noisy(made, plain):
    assert "places of 2 people, with noise." in plain[1]
    table = read_releases(made / "r.csv")
    opened = ReleaseTable({**table.columns, "open": np.arange(len(table)) < 5})
    said = reporting._summary(promise_of(table, SETTINGS.engine(load_model(made / "m.npz"))), opened)
    assert said.startswith(f"{len(table):,} places of 2 people, with noise but for 5 that are open.")


def test_the_same_seed_makes_the_same_page_and_another_seed_another_person(made, plain):
    """Pictures included: the plain page has seed 0."""
    same, other = (
        report(made / "r.csv", made / f"{seed}.html", made / "m.npz", SETTINGS, rng=seed).read_bytes()
        for seed in (0, 2)
    )
    assert plain[0].read_bytes() == same != other


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settings": "utility:2km"}, "was released with settings"),
        ({"settings": ReleaseSettings("utility:1km", 1.0)}, "was released with settings"),
        ({"settings": None}, "no policy is given; give the --policy that the releases were made with"),
        ({"output": "page.pdf"}, "a report is an .html file"),
        ({"users": ("nobody",)}, "user 'nobody' has no release; there are 000, 001"),
    ],
)
def test_what_does_not_fit_the_releases_is_refused_and_nothing_is_written(made, tmp_path, options, message):
    given = {"settings": SETTINGS, "output": "page.html", "users": ()} | options
    with pytest.raises(ConfigurationError, match=message):
        report(made / "r.csv", tmp_path / given["output"], made / "m.npz", given["settings"], users=given["users"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("blank")
def test_a_batch_and_sessions_say_themselves_how_they_were_made(made, tmp_path):
    ann = Data((TOWN,), users=("000",))
    batch(ann, tmp_path / "batch", made / "m.npz", SETTINGS, kind="csv", workers=1)
    release(ann, made / "m.npz", SETTINGS, session=tmp_path / "people.db")
    for name in ("batch", "people.db"):
        page = report(tmp_path / name, tmp_path / "page.html", made / "m.npz", rng=0, overwrite=True).read_text("utf-8")
        assert f"<h1>Private locations: {name}</h1>" in page
        assert f"SHA-256 {SETTINGS.content_hash[:16]}" in page
        assert "at most 1.65 times as likely" in page
        with pytest.raises(ConfigurationError, match="was released with settings"):
            report(tmp_path / name, tmp_path / "no.html", made / "m.npz", ReleaseSettings("utility:2km", 0.5))


def test_another_model_is_refused_and_a_page_that_exists_stays(made, tmp_path):
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell=1)
    other = learn(Data((TOWN,), users=("002",)), space, step_seconds=900).model
    with pytest.raises(ConfigurationError, match="was released with model"):
        report(made / "r.csv", tmp_path / "page.html", other, SETTINGS)
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(OutputError):
        report(made / "r.csv", tmp_path / "page.html", made / "m.npz", SETTINGS)
    assert (tmp_path / "page.html").read_text() == "mine"


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_nothing_runs_over_the_edge_of_a_phone_or_a_desk(wide, browser, width):
    """A title and names without a space to break at are the hard case."""
    assert looked_at(browser, wide, width) == 3


def test_on_paper_it_takes_two_pages_or_three(plain, browser):
    path, _ = plain
    page = browser.new_page()
    page.goto(path.as_uri())
    paper = page.pdf(prefer_css_page_size=True)
    page.close()
    assert paper.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 3


def test_both_maps_show_the_same_piece_of_ground_and_neither_is_empty(made, monkeypatch):
    import dphmm.plots.reporting as reporting

    drawn = []
    monkeypatch.setattr(reporting, "png", lambda figure: drawn.append(figure) or b"")
    page_of(made)
    before, after, _ = drawn
    assert before.axes[0].get_xlim() == after.axes[0].get_xlim()
    assert before.axes[0].get_ylim() == after.axes[0].get_ylim()
    (track,) = (line for line in before.axes[0].lines if "invented" in str(line.get_label()))
    assert len(track.get_xdata()) > 10
    low, high = before.axes[0].get_xlim()
    assert np.all((np.asarray(track.get_xdata()) >= low) & (np.asarray(track.get_xdata()) <= high))
    assert after.axes[0].lines or after.axes[0].collections
    for figure in drawn:
        figure.canvas.draw()
        (legend,) = figure.legends
        box, page = legend.get_window_extent(), figure.bbox
        assert box.x0 >= page.x0 - 1
        assert box.x1 <= page.x1 + 1
