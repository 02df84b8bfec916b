"""Run the code of one page, in order and in a separate folder, and record its outputs.

``python -m scripts.site.run_page PAGE FOLDER`` writes ``FOLDER/PAGE.json``: a list of outputs, one for each block of
the page. Pictures are written to the same folder. A command that fails, an exception, a warning, or output other than
that on the page ends the run with one message and exit code 1.
"""

from __future__ import annotations

import ast
import contextlib
import doctest
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import traceback
import warnings
from pathlib import Path
from typing import Any

from click.testing import CliRunner

import dphmm
from dphmm.cli import main
from scripts.site.blocks import Block, parse_blocks, parse_commands

ROOT = Path(__file__).parents[2]


_FIGURE = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


class PageError(Exception):
    """Code of a page fails or prints different output than the page shows."""


class PageRun:
    """A run of a page's code: its folder, namespace and outputs.

    Parameters
    ----------
    page
        Name of the page in pictures and messages.
    work
        Folder in which the code runs, with a copy of the project's ``data``.
    pictures
        Folder of the pictures.
    text
        Text of the page.
    """

    def __init__(self, page: str, work: Path, pictures: Path, text: str) -> None:
        self.page = page
        self.work = work
        self.pictures = pictures
        self.words = re.sub(r"<!--.*?-->|^```(?:console|python)$.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
        self.printed = ""
        self.names: dict[str, Any] = {"__name__": page}
        self.drawn = 0
        self.is_skipping = False

    def output(self, block: Block) -> dict[str, Any]:
        """Run a block and return its outputs.

        ``printed`` contains the output of each command, ``text`` and ``pictures`` the output and figures of Python, and
        ``file`` the copy of the file to which a remark refers.
        """
        if block.file is not None:
            (self.work / block.file).write_text(block.body, encoding="utf-8")
            if block.file.endswith(".py"):  # a module, which later blocks import
                return {}
        if block.language == "check":
            claim = f"{block.body} {block.remark}"
            if not eval(claim, {"dphmm": dphmm, "Path": Path, "printed": self.was_printed, **self.names}):
                raise PageError(f"the check is false: {claim}")
            return {}
        if block.language in ("picture", "page"):
            path = self.work / block.body
            if self.is_skipping and not path.exists():
                return {}
            if not path.is_file() or not path.stat().st_size:
                raise PageError(f"{block.body} was not written or is empty")
            self.drawn += 1
            shutil.copyfile(path, self.pictures / f"{self.page}-{self.drawn}-{path.name}")
            return {"file": f"{self.page}-{self.drawn}-{path.name}"}
        if block.remark.startswith("as printed: within "):
            share = int(block.remark.split()[-2]) / 100
            for line in block.body.splitlines():
                if not self.was_printed(line, share):
                    raise PageError(f"no command printed this line with figures within {share:.0%}:\n{line}")
        if not block.is_run:
            return {}
        wanted = block.remark.removeprefix("run where: ")
        if wanted != block.remark and subprocess.run(wanted, shell=True, capture_output=True).returncode:
            self.is_skipping = True
            return {"text": f"(not run when this page was built: `{wanted}` failed)\n"}
        done = (
            self._run_console(block.body, block.code) if block.language == "console" else self._run_python(block.body)
        )
        return {} if block.remark == "silent" else done

    def was_printed(self, words: str, share: float = 0.0) -> bool:
        """Return whether a command printed these words, and the text has their figures.

        Each printed figure may differ by a share of the stated one.
        """
        wanted = _parse_figures(words)
        spaced = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in _FIGURE.split(words.strip())]
        matches = re.finditer(f"({_FIGURE.pattern})".join(spaced), self.printed)
        near = (zip(wanted, _parse_figures(match[0]), strict=True) for match in matches)
        is_printed = any(all(abs(there - here) <= share * here for here, there in pairs) for pairs in near)
        return is_printed and set(wanted) <= set(_parse_figures(self.words))

    def _run_console(self, body: str, code: int) -> dict[str, Any]:
        outputs = []
        for command, expected in parse_commands(body):
            printed = "" if command.startswith("scripts/") else self._run_command(command, code)
            self.printed += f"{printed}\n"
            if expected and _strip_lines(printed) != _strip_lines(expected):
                raise PageError(f"$ {command}\nprints\n{printed}\nand not\n{expected}")
            outputs.append("" if expected else printed.replace(str(self.work), "."))
        return {"printed": outputs}

    def _run_command(self, line: str, wanted: int) -> str:
        """Run a line: a plain ``dphmm`` command in this process (faster), others in a shell."""
        lexer = shlex.shlex(line.replace("\\\n", " "), posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
        if words[0] == "dphmm" and not any(set(word) <= set("();<>|&") for word in words):
            done = CliRunner().invoke(main, words[1:], prog_name="dphmm")
            printed, code = done.output, done.exit_code
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                printed += "".join(traceback.format_exception(done.exception))
        else:
            started = subprocess.run(line, shell=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            printed, code = started.stdout, started.returncode
        if code != wanted:
            raise PageError(f"$ {line}\nends with exit code {code} and prints\n{printed}")
        return printed

    def _run_python(self, body: str) -> dict[str, Any]:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), warnings.catch_warnings():
            warnings.simplefilter("error")
            if body.lstrip().startswith(">>> "):
                self._run_doctest(body)
            else:
                self._run_statements(body)
            self.printed += printed.getvalue()
            return {"text": printed.getvalue().replace(str(self.work), "."), "pictures": self._save_figures()}

    def _run_statements(self, body: str) -> None:
        """Run a block as in a notebook: the value of a final expression is printed."""
        tree = ast.parse(body, self.page)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, self.page, "exec"), self.names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), self.page, "eval"), self.names)
            if value is not None:
                print(value if isinstance(value, str) else repr(value))

    def _run_doctest(self, body: str) -> None:
        test = doctest.DocTestParser().get_doctest(body, self.names, self.page, self.page, 0)
        report = io.StringIO()
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        if runner.run(test, out=report.write, clear_globs=False).failed:
            raise PageError(report.getvalue())
        self.names.update(test.globs)

    def _save_figures(self) -> list[str]:
        pyplot = sys.modules.get("matplotlib.pyplot")
        names = []
        for number in pyplot.get_fignums() if pyplot else ():
            self.drawn += 1
            names.append(f"{self.page}-{self.drawn}.png")
            figure = pyplot.figure(number)
            figure.savefig(self.pictures / names[-1], dpi=120, bbox_inches="tight")
            pyplot.close(figure)
        return names


def _parse_figures(text: str) -> list[float]:
    return [float(figure.replace(",", "")) for figure in _FIGURE.findall(text)]


def _strip_lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.splitlines()]


def run_page(page: Path, folder: Path) -> list[dict[str, Any]]:
    """Run a page and return the outputs of its blocks. Pictures are written to the folder.

    Raises
    ------
    PageError
        If the code fails, warns, or prints different output than the page shows.
    """
    with tempfile.TemporaryDirectory() as name:
        work, tools = Path(name).resolve() / "work", Path(name).resolve() / "bin"
        shutil.copytree(ROOT / "data", work / "data")
        tools.mkdir()
        (tools / "dphmm").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m dphmm "$@"\n', encoding="utf-8")
        (tools / "dphmm").chmod(0o755)
        os.environ["PATH"] = f"{tools}{os.pathsep}{os.environ['PATH']}"
        os.environ["PYTHONPATH"], os.environ["RETICULATE_PYTHON"] = str(ROOT), sys.executable
        sys.path.insert(0, str(work))  # modules that are files of the page
        with contextlib.chdir(work):
            text = page.read_text(encoding="utf-8")
            run, done = PageRun(page.stem, work, folder, text), []
            for block in parse_blocks(text):
                try:
                    done.append(run.output(block))
                except PageError as problem:
                    raise PageError(f"{page.name}: {problem}") from None
                except Exception:
                    raise PageError(
                        f"{page.name}: the block\n{block.body}\nfails with\n{traceback.format_exc()}"
                    ) from None
            return done


def start() -> int:
    """Run the page of the first argument, writing outputs to the folder of the second."""
    page, folder = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
    os.environ["MPLBACKEND"] = "agg"
    try:
        outputs = run_page(page, folder)
    except PageError as problem:
        print(problem, file=sys.stderr)
        return 1
    (folder / f"{page.stem}.json").write_text(json.dumps(outputs), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(start())
