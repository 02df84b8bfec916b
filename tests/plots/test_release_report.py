"""Tests of the release report: one file that fits all widths, without true locations."""

from __future__ import annotations

import re
import stat

import numpy as np
import pytest

from dphmm import ReleaseSettings
from dphmm.errors import ConfigurationError, OutputError
from dphmm.jobs import Data, batch, learn, load_model, region, release
from dphmm.jobs.release.guarantees import build_guarantee
from tests.pages import DESK, PHONE, inspect_page

pytest.importorskip("matplotlib")

from dphmm.plots import release_report, report
from dphmm.writers import ReleaseTable, read_releases

TOWN = "data/sample/geolife"
SETTINGS = ReleaseSettings("utility:1km", 0.5)
SECRET = "very-long-names-of-people-that-nothing-breaks-" * 3


@pytest.fixture(scope="module")
def release_folder(tmp_path_factory):
    """Return a folder with releases of two users of the sample and their model."""
    folder = tmp_path_factory.mktemp("report")
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=0.5)
    others = Data((TOWN,), exclude_users=("000", "001"))
    model = learn(others, space, step_seconds=900, output=folder / "m.npz").model
    release(Data((TOWN,), users=("000", "001")), model, SETTINGS, folder / "r.csv")
    return folder


def write_page(release_folder, name="page.html", **options):
    path = report(
        release_folder / "r.csv",
        release_folder / name,
        release_folder / "m.npz",
        "utility:1km",
        rng=0,
        overwrite=True,
        **options,
    )
    return path, path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def plain(release_folder):
    """Return the page without options."""
    return write_page(release_folder, "plain.html")


@pytest.fixture(scope="module")
def wide(release_folder):
    """Return a page with a title that contains no space."""
    return write_page(release_folder, "wide.html", title=SECRET)[0]


@pytest.mark.slow
def test_page_is_one_file_with_all_parts(plain):
    _, page = plain
    headings = re.findall(r"<h2>(.*?)</h2>", page)
    assert headings == [
        "Guarantee",
        "Before and after",
        "Disclosure in metres and odds",
        "Where they disclose more than the guarantee suggests",
        "Published releases",
        "Limitations",
        "Settings",
    ]
    assert page.count("<li>") > 8
    assert page.count('src="data:image/png;base64,') == 3
    assert not re.search(r"https?://", page)
    assert "a synthetic user" in page
    assert "PRIVATE" not in page


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_page_contains_true_locations_only_on_request(release_folder, monkeypatch):
    """Only the releases and the model are read.

    With true locations the page starts with a warning.
    """
    read = []
    monkeypatch.setattr(Data, "read", lambda self: read.append(self))
    write_page(release_folder)
    assert read == []
    monkeypatch.undo()
    with pytest.raises(ConfigurationError, match=r"PRIVATE-page\.html"):
        write_page(release_folder, true=TOWN)
    path, page = write_page(release_folder, "PRIVATE-page.html", true=TOWN)
    assert page.index('<p class="banner">PRIVATE') < page.index("<h1>")
    assert "synthetic" not in page
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.slow
def test_open_places_are_not_described_as_noisy(release_folder, plain):
    assert "locations of 2 users, with noise." in plain[1]
    table = read_releases(release_folder / "r.csv")
    opened = ReleaseTable({**table.columns, "unprotected": np.arange(len(table)) < 5})
    summary = release_report._summarize_releases(
        build_guarantee(table, SETTINGS.engine(load_model(release_folder / "m.npz"))), opened
    )
    assert summary.startswith(f"{len(table):,} locations of 2 users, with noise except for 5 that are unprotected.")


@pytest.mark.slow
def test_page_is_reproducible_and_seed_changes_synthetic_user(release_folder, plain):
    """This includes the plots: the plain page has seed 0."""
    same, other = (
        report(
            release_folder / "r.csv", release_folder / f"{seed}.html", release_folder / "m.npz", SETTINGS, rng=seed
        ).read_bytes()
        for seed in (0, 2)
    )
    assert plain[0].read_bytes() == same != other


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"settings": "utility:2km"}, "settings"),
        ({"settings": ReleaseSettings("utility:1km", 1.0)}, "settings"),
        ({"output": "page.pdf"}, "must be an .html file"),
        ({"users": ("bob",)}, "user 'bob' has no release; the releases contain 000, 001"),
    ],
)
def test_incompatible_arguments_raise_and_write_nothing(release_folder, tmp_path, options, message):
    arguments = {"settings": SETTINGS, "output": "page.html", "users": ()} | options
    with pytest.raises(ConfigurationError, match=message):
        report(
            release_folder / "r.csv",
            tmp_path / arguments["output"],
            release_folder / "m.npz",
            arguments["settings"],
            users=arguments["users"],
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_batch_and_sessions_contain_their_settings(release_folder, tmp_path):
    ann = Data((TOWN,), users=("000",))
    batch(ann, tmp_path / "batch", release_folder / "m.npz", SETTINGS, kind="csv", workers=1)
    release(ann, release_folder / "m.npz", SETTINGS, session=tmp_path / "users.db")
    for name in ("batch", "users.db"):
        page = report(
            tmp_path / name, tmp_path / "page.html", release_folder / "m.npz", rng=0, overwrite=True
        ).read_text("utf-8")
        assert f"<h1>Private locations: {name}</h1>" in page
        assert f"SHA-256 {SETTINGS.content_hash[:16]}" in page
        assert "at most 1.65 times as likely" in page
        assert "The source of the noise" not in page
        with pytest.raises(ConfigurationError, match="settings"):
            report(tmp_path / name, tmp_path / "no.html", release_folder / "m.npz", ReleaseSettings("utility:2km", 0.5))


@pytest.mark.slow
@pytest.mark.usefixtures("blank")
def test_seeded_batches_and_sessions_have_no_guarantee(release_folder, tmp_path):
    ann = Data((TOWN,), users=("000",))
    batch(ann, tmp_path / "batch", release_folder / "m.npz", SETTINGS, workers=1, rng=1)
    release(ann, release_folder / "m.npz", SETTINGS, session=tmp_path / "users.db", rng=1)
    for name in ("batch", "users.db"):
        page = report(
            tmp_path / name, tmp_path / "page.html", release_folder / "m.npz", rng=0, overwrite=True
        ).read_text("utf-8")
        assert "There is no guarantee for a single release: its noise is seeded" in page
        assert "The source of the noise" not in page


def test_other_model_raises_and_existing_page_is_kept(release_folder, tmp_path):
    space = region(bbox=(44.97, -30.04, 45.03, -29.96), cell_km=1)
    other = learn(Data((TOWN,), users=("002",)), space, step_seconds=900).model
    with pytest.raises(ConfigurationError, match="model"):
        report(release_folder / "r.csv", tmp_path / "page.html", other, SETTINGS)
    (tmp_path / "page.html").write_text("mine")
    with pytest.raises(OutputError):
        report(release_folder / "r.csv", tmp_path / "page.html", release_folder / "m.npz", SETTINGS)
    assert (tmp_path / "page.html").read_text() == "mine"


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_page_fits_phone_and_desktop(wide, browser, width):
    """The title and the names contain no spaces, which is the hardest case."""
    assert inspect_page(browser, wide, width) == 3


def test_printed_page_has_at_most_three_sheets(plain, browser):
    path, _ = plain
    page = browser.new_page()
    page.goto(path.as_uri())
    paper = page.pdf(prefer_css_page_size=True)
    page.close()
    assert paper.startswith(b"%PDF")
    assert 1 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 3


@pytest.mark.slow
def test_both_maps_have_same_view_and_are_not_empty(release_folder, monkeypatch):

    figures = []
    monkeypatch.setattr(release_report, "render_png", lambda figure: figures.append(figure) or b"")
    write_page(release_folder)
    before, after, _ = figures
    assert before.axes[0].get_xlim() == after.axes[0].get_xlim()
    assert before.axes[0].get_ylim() == after.axes[0].get_ylim()
    (track,) = (line for line in before.axes[0].lines if "synthetic" in str(line.get_label()))
    assert len(track.get_xdata()) > 10
    low, high = before.axes[0].get_xlim()
    assert np.all((np.asarray(track.get_xdata()) >= low) & (np.asarray(track.get_xdata()) <= high))
    assert after.axes[0].lines or after.axes[0].collections
    for figure in figures:
        figure.canvas.draw()
        (legend,) = figure.legends
        box, page = legend.get_window_extent(), figure.bbox
        assert box.x0 >= page.x0 - 1
        assert box.x1 <= page.x1 + 1
