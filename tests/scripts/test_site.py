"""Tests of the documentation site: code blocks are run, and links are checked."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("numpydoc")

from scripts.site import commands, names
from scripts.site.blocks import parse_blocks, parse_commands
from scripts.site.links import find_problems
from scripts.site.look import find_flaws
from scripts.site.pages import with_outputs
from tests.documents import ROOT

pytestmark = pytest.mark.slow  # a tool of the project, not a feature

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


def test_page_is_run_in_order_with_output_below_code(tmp_path):
    pytest.importorskip("matplotlib")
    done, _ = run(tmp_path, PAGE)
    assert done.returncode == 0, done.stderr
    outputs = json.loads((tmp_path / "page.json").read_text(encoding="utf-8"))
    assert [sorted(block) for block in outputs] == [[], ["printed"], ["pictures", "text"], []]
    whole = with_outputs(PAGE, outputs, "_made")
    assert whole.index("wc -w") < whole.index("\n2\n") < whole.index("2 + 2") < whole.index("\n4\n")
    assert "](_made/page-1.png)" in whole
    assert (tmp_path / "page-1.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```console\n$ dphmm learn absent.csv -o model.npz\n```\n", "there is no such file"),
        ("```console\n$ echo one\ntwo\n```\n", "and not\ntwo"),
        (
            "```console\n$ echo 1,200 m\n```\n<!-- as printed: within 10 % -->\n```text\n1,000 m\n```\n",
            "no command printed",
        ),
        ('1,200\n```console\n$ echo 1,000 m\n```\n<!-- check: printed("1,000 m") -->\n', "the check is false"),
        ("```python\nassert 1 == 2\n```\n", "AssertionError"),
        ("```python\nimport warnings\nwarnings.warn('old')\n```\n", "UserWarning: old"),
        ("```python\n>>> 1 + 1\n3\n```\n", "Got:\n    2"),
        ("<!-- picture: map.png A map -->\n", "map.png was not written"),
    ],
)
def test_page_with_unexpected_output_stops_build(tmp_path, text, message):
    done, _ = run(tmp_path, f"# A page\n\n{text}")
    assert done.returncode == 1
    assert message in done.stderr
    assert not (tmp_path / "page.json").exists()


def test_stated_figures_are_compared_with_command_output(tmp_path):
    command = "```console\n$ echo 'error  1,050.5 m at 3 %'\n```\n"
    shown = "<!-- as printed: within 10 % -->\n```text\n  error   1,100 m at 3 %\n```\n"
    done, _ = run(tmp_path, f'{command}{shown}<!-- check: printed("error 1,000 m", 0.1) -->\nA hundred of 1,000 m.\n')
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("there", ["true", "false"])
def test_conditional_block_is_run_or_marked_as_not_run(tmp_path, there):
    command = f"<!-- run where: {there} -->\n```console\n$ echo one | tee made.txt\n```\n"
    text = f"# A page\n\n{command}\n<!-- page: made.txt One -->\n"
    done, _ = run(tmp_path, text)
    assert done.returncode == 0, done.stderr
    whole = with_outputs(text, json.loads((tmp_path / "page.json").read_text(encoding="utf-8")), "_made")
    assert ("_made/page-1-made.txt" in whole) == (there == "true")
    assert ("not run when this page was built: `false` failed" in whole) == (there == "false")


def test_page_becomes_notebook_with_code_and_text_cells(tmp_path):
    pytest.importorskip("nbclient")
    from nbclient.exceptions import CellExecutionError

    from scripts.site.notebook import build_notebook, run

    page = tmp_path / "page.md"
    ask = "```console\n$ echo one \\\n  two\none two\n```\n<!-- not run: asks -->\n```console\n$ false\n```\n"
    page.write_text(f"# A [page](other.md)\n\n{ask}and\n```python\nprint(6 * 7)\n```\nends.\n", encoding="utf-8")
    cells = build_notebook(page.read_text(encoding="utf-8")).cells
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code", "markdown", "code", "markdown"]
    assert cells[0]["source"] == "# A page"
    assert "$ false" in cells[2]["source"]  # code that is not run stays text
    run(page, tmp_path / "page.ipynb")
    done = json.loads((tmp_path / "page.ipynb").read_text(encoding="utf-8"))["cells"]
    assert ["".join(cell["outputs"][0]["text"]) for cell in done if cell["cell_type"] == "code"] == [
        "one two\n",
        "42\n",
    ]
    page.write_text("```console\n$ false\n$ true\n```\n", encoding="utf-8")
    with pytest.raises(CellExecutionError):
        run(page, tmp_path / "page.ipynb")


def test_command_over_multiple_lines_is_one_command():
    assert parse_commands("$ one \\\n  two\nsaid\n$ three\n") == [("one \\\n  two", "said\n"), ("three", "")]


def test_page_for_r_runs_in_r(tmp_path):
    command = ["Rscript", "-e", "reticulate::import('dphmm')"]
    here = {**os.environ, "PYTHONPATH": str(ROOT), "RETICULATE_PYTHON": sys.executable}
    if not shutil.which("Rscript") or subprocess.run(command, env=here, capture_output=True).returncode:
        pytest.skip("no R with reticulate: apt install r-base-core r-cran-reticulate")
    words = [sys.executable, "-m", "scripts.site.run_page", str(ROOT / "docs" / "how-to" / "r.md"), str(tmp_path)]
    done = subprocess.run(words, cwd=ROOT, env=here, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (output,) = (
        block["printed"][0]
        for block in json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
        if "printed" in block
    )
    assert "799 releases" in output
    assert (tmp_path / "r-1-day.png").stat().st_size > 10_000


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_blocks_that_are_not_run_state_a_reason(page):
    for block in parse_blocks(page.read_text(encoding="utf-8")):
        if block.language in ("console", "python") and not block.is_run:
            assert len(block.remark) > len("not run: ") + 10


def test_every_command_and_key_has_an_entry():
    pages = commands.build_pages()
    assert {f"commands/{name}.md" for name in commands.COMMANDS} < set(pages)
    assert "`-e, --epsilon" in pages["commands/release.md"] or "`--epsilon" in pages["commands/release.md"]
    assert "`repair_max_work`" in pages["commands/release.md"]
    for key in ("policy", "schedule", "tiles", "true_locations_unprotected", "window_steps"):
        assert f"`{key}`" in pages["keys.md"], key


def test_key_without_description_raises():
    class Undescribed:
        """A class without a description of its field.

        Attributes
        ----------
        other
            Something.
        """

        class Field:
            def is_required(self):
                return True

        model_fields = {"key": Field()}  # noqa: RUF012

    with pytest.raises(LookupError, match=r"Undescribed\.key"):
        list(commands._list_fields(Undescribed))


def test_every_public_name_is_on_page_of_its_stage():
    pages = names.build_pages()
    for stage, exported in names.list_exports().items():
        for name in exported:
            assert f":: dphmm.{stage}.{name}\n" in pages[f"api/{stage}.rst"]


def test_broken_links_and_external_resources_are_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#there">b</a><a href="https://example.org">out</a>')
    (tmp_path / "b.html").write_text('<p id="there"><a href="a.html">a</a><img src="data:image/png;base64,AA==">')
    assert find_problems(tmp_path) == []
    (tmp_path / "c.html").write_text(
        '<a href="d.html"></a><a href="b.html#here"></a><img src="https://example.org/x.png">'
    )
    assert len(find_problems(tmp_path)) == 3


def test_wide_pages_and_external_requests_are_found(tmp_path):
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
    messages = find_flaws([tmp_path / name for name in pages])
    assert [message for message in messages if message.startswith("good.html")] == []
    assert sum(message.startswith("wide.html at 420 pixels is 6") for message in messages) == 1
    assert sum("requests https://docs.invalid/x.js" in message for message in messages) == 2
    assert sum(message.startswith("fails.html") and "absent is not defined" in message for message in messages) == 2
