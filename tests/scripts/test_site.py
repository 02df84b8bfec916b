"""The documentation's site: blocks of pages are found and run, wrong ones stop the build, and links are checked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("numpydoc")

from scripts.site import commands, names
from scripts.site.blocks import blocks
from scripts.site.blocks import commands as commands_of
from scripts.site.links import problems
from scripts.site.look import flaws
from scripts.site.pages import with_outputs
from tests.documents import ROOT

pytestmark = pytest.mark.slow  # a tool of the project, and none of what it is for

PAGE = """# A page

<!-- file: words.txt -->
```text
one two
```

```console
$ wc -w < words.txt
```

```python
import matplotlib.pyplot as plt
plt.plot([1, 2])
2 + 2
```

<!-- not run: it would take a year -->
```console
$ sleep 31536000
```
"""


def run(folder, text):
    page = folder / "page.md"
    page.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "scripts.site.run_page", str(page), str(folder)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    return done, page


def test_a_page_is_run_in_order_and_its_output_stands_under_its_code(tmp_path):
    pytest.importorskip("matplotlib")
    done, _ = run(tmp_path, PAGE)
    assert done.returncode == 0, done.stderr
    outputs = json.loads((tmp_path / "page.json").read_text(encoding="utf-8"))
    assert [sorted(one) for one in outputs] == [[], ["told"], ["pictures", "text"], []]
    whole = with_outputs(PAGE, outputs, "_made")
    assert whole.index("wc -w") < whole.index("\n2\n") < whole.index("2 + 2") < whole.index("\n4\n")
    assert "](_made/page-1.png)" in whole
    assert (tmp_path / "page-1.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```console\n$ dphmm learn absent.csv -o model.npz\n```\n", "there is no such file"),
        ("```console\n$ echo one\ntwo\n```\n", "and not\ntwo"),
        (
            "```console\n$ echo 1,200 m\n```\n<!-- as printed: within 10 % -->\n```text\n1,000 m\n```\n",
            "no command printed",
        ),
        ('1,200\n```console\n$ echo 1,000 m\n```\n<!-- check: printed("1,000 m") -->\n', "it is not so that"),
        ("```python\nassert 1 == 2\n```\n", "AssertionError"),
        ("```python\nimport warnings\nwarnings.warn('old')\n```\n", "UserWarning: old"),
        ("```python\n>>> 1 + 1\n3\n```\n", "Got:\n    2"),
        ("<!-- picture: map.png A map -->\n", "map.png was not made"),
    ],
)
def test_a_page_whose_code_does_something_else_stops_the_build(tmp_path, text, said):
    done, _ = run(tmp_path, f"# A page\n\n{text}")
    assert done.returncode == 1
    assert said in done.stderr
    assert not (tmp_path / "page.json").exists()


def test_figures_in_the_words_of_a_page_are_those_that_its_commands_print(tmp_path):
    told = "```console\n$ echo 'error  1,050.5 m at 3 %'\n```\n"
    shown = "<!-- as printed: within 10 % -->\n```text\n  error   1,100 m at 3 %\n```\n"
    done, _ = run(tmp_path, f'{told}{shown}<!-- check: printed("error 1,000 m", 0.1) -->\nA hundred of 1,000 m.\n')
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("there", ["true", "false"])
def test_a_block_is_run_where_what_it_needs_is_there_and_says_so_where_not(tmp_path, there):
    command = f"<!-- run where: {there} -->\n```console\n$ echo one | tee made.txt\n```\n"
    text = f"# A page\n\n{command}\n<!-- page: made.txt One -->\n"
    done, _ = run(tmp_path, text)
    assert done.returncode == 0, done.stderr
    whole = with_outputs(text, json.loads((tmp_path / "page.json").read_text(encoding="utf-8")), "_made")
    assert ("_made/page-1-made.txt" in whole) == (there == "true")
    assert ("not run when this page was built: there, false did not work" in whole) == (there == "false")


def test_a_page_is_a_notebook_whose_cells_are_its_code_and_its_words(tmp_path):
    pytest.importorskip("nbclient")
    from nbclient.exceptions import CellExecutionError

    from scripts.site.notebook import notebook, run

    page = tmp_path / "page.md"
    ask = "```console\n$ echo one \\\n  two\none two\n```\n<!-- not run: asks -->\n```console\n$ false\n```\n"
    page.write_text(f"# A [page](other.md)\n\n{ask}and\n```python\nprint(6 * 7)\n```\nends.\n", encoding="utf-8")
    cells = notebook(page.read_text(encoding="utf-8")).cells
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code", "markdown", "code", "markdown"]
    assert cells[0]["source"] == "# A page"
    assert "$ false" in cells[2]["source"]  # what is not run stays text
    run(page, tmp_path / "page.ipynb")
    done = json.loads((tmp_path / "page.ipynb").read_text(encoding="utf-8"))["cells"]
    assert ["".join(cell["outputs"][0]["text"]) for cell in done if cell["cell_type"] == "code"] == [
        "one two\n",
        "42\n",
    ]
    page.write_text("```console\n$ false\n$ true\n```\n", encoding="utf-8")
    with pytest.raises(CellExecutionError):
        run(page, tmp_path / "page.ipynb")


def test_a_command_over_several_lines_is_one():
    assert commands_of("$ one \\\n  two\nsaid\n$ three\n") == [("one \\\n  two", "said\n"), ("three", "")]


def test_the_page_for_r_does_in_r_what_it_says(tmp_path):
    asked = ["Rscript", "-e", "reticulate::import('dphmm')"]
    here = {**os.environ, "PYTHONPATH": str(ROOT), "RETICULATE_PYTHON": sys.executable}
    if not shutil.which("Rscript") or subprocess.run(asked, env=here, capture_output=True).returncode:
        pytest.skip("no R with reticulate: apt install r-base-core r-cran-reticulate")
    words = [sys.executable, "-m", "scripts.site.run_page", str(ROOT / "docs" / "how-to" / "r.md"), str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, env=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (told,) = (one["told"][0] for one in json.loads((tmp_path / "r.json").read_text(encoding="utf-8")) if "told" in one)
    assert "799 releases" in told
    assert (tmp_path / "r-1-day.png").stat().st_size > 10_000


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_whatever_is_not_run_says_why(page):
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.language in ("console", "python") and not block.is_run:
            assert len(block.remark) > len("not run: ") + 10


def test_every_command_and_every_key_has_its_entry():
    made = commands.pages()
    assert {f"commands/{name}.md" for name in commands.COMMANDS} < set(made)
    assert "`-e, --epsilon" in made["commands/release.md"] or "`--epsilon" in made["commands/release.md"]
    for key in ("policy", "schedule", "tiles", "true_places_unprotected", "window_steps", "private_diagnostics"):
        assert f"`{key}`" in made["keys.md"], key


def test_a_key_without_a_description_is_an_error():
    class Undescribed:
        """Nothing is said of its field.

        Attributes
        ----------
        other
            Something.
        """

        class Field:
            def is_required(self):
                return True

        model_fields = {"key": Field()}  # noqa: RUF012

    with pytest.raises(LookupError, match=r"Undescribed\.key has no description"):
        list(commands._fields(Undescribed))


def test_every_public_name_is_on_the_page_of_its_stage():
    made = names.pages()
    for stage, exported in names.exported().items():
        for name in exported:
            assert f":: dphmm.{stage}.{name}\n" in made[f"api/{stage}.rst"]


def test_links_that_lead_nowhere_and_fetches_from_elsewhere_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there">b</a><a href="https://example.org">out</a>')
    (tmp_path / "b.html").write_text('<p id="there"><a href="a.html">a</a><img src="data:image/png;base64,AA==">')
    assert problems(tmp_path) == []
    (tmp_path / "c.html").write_text(
        '<a href="d.html"></a><a href="b.html#here"></a><img src="https://example.org/x.png">'
    )
    assert len(problems(tmp_path)) == 3


def test_pages_that_are_too_wide_or_ask_other_machines_are_found(tmp_path):
    pytest.importorskip("playwright")
    if not (os.environ.get("DPHMM_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")):
        pytest.skip("no Chromium: install one, or set DPHMM_CHROMIUM")
    head = "<meta name='viewport' content='width=device-width'>"
    pages = {
        "good.html": f"{head}<p>fits</p>",
        "wide.html": f"{head}<div style='width: 600px; height: 1px'></div>",
        "asks.html": f"{head}<script src='https://docs.invalid/x.js'></script>",
        "fails.html": f"{head}<script>absent()</script>",
    }
    for name, text in pages.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    said = flaws([tmp_path / name for name in pages])
    assert [one for one in said if one.startswith("good.html")] == []
    assert sum(one.startswith("wide.html at 420 pixels is 6") for one in said) == 1
    assert sum("asks for https://docs.invalid/x.js" in one for one in said) == 2
    assert sum(one.startswith("fails.html") and "absent is not defined" in one for one in said) == 2
