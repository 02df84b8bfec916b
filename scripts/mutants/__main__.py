"""Would the tests notice? Changes one operator, comparison, constant or branch at a time and runs the tests on it.

Every mutant is a copy of the package in which one expression differs. It meets the tests that are named after its
module, and those that run its line, quickest first, as many as --seconds lets in; one that survives them meets all
others that run its line, as many as --more-seconds lets in. One that no test kills is printed: it is an equal program,
one that is only slower, or a gap in the tests.

\b
Usage: python -m scripts.mutants --changed [--base main] [--survivors 3]     (lines written since HEAD left the base)
       python -m scripts.mutants [--count 300] [--seed 1] [--stages geometry,policy] [--workers 2] [--json FILE]
       python -m scripts.mutants --again FILE [--json FILE]     (those of an earlier run that survived, in today's code)

With --reach, what each test reaches is measured once, by a run of all of them, and kept. A run that was stopped goes on
where its --json ends.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from scripts.mutants.mutations import ROOT, Mutant, mutants, relocated
from scripts.mutants.reach import Reach, affordable, copied
from scripts.mutants.trial import NO_TESTS, Run, against, every_test, load_libraries, standing

STAGES = "geometry,policy,mechanisms,model,release,leakage"
PATIENCE = 60.0, 10.0
"""Tests hang, which kills the mutant, after these seconds and this multiple of the time that they need."""


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant, and how many tests it met."""

    mutant: Mutant
    killed: bool
    tests: int
    seconds: float


def modules(stages: list[str]) -> list[Path]:
    """The modules of stages."""
    return [path for stage in stages for path in sorted((ROOT / "dphmm" / stage).rglob("*.py"))]


def sample(stages: list[str], count: int, seed: int, lines: dict[str, set[int]] | None = None) -> list[Mutant]:
    """`count` mutants drawn without replacement from the stages, or from these lines of them, by their places."""
    everything = [mutant for path in modules(stages) for mutant in mutants(path)]
    if lines is not None:
        everything = [mutant for mutant in everything if mutant.line in lines.get(mutant.path, ())]
    chosen = random.Random(seed).sample(everything, min(count, len(everything)))
    return sorted(chosen, key=lambda mutant: (mutant.path, mutant.start))


def changed(base: str) -> dict[str, set[int]]:
    """The lines of each module of a stage that are not those of the commit where HEAD left the base.

    Where HEAD is in the base itself, those that its last commit wrote.
    """

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise click.ClickException(f"git {words[0]}: {done.stderr.strip()}; name another commit with --base")
        return done.stdout.strip()

    left = git("merge-base", base, "HEAD")
    if left == git("rev-parse", "HEAD") and not git("status", "--porcelain", "--", "dphmm"):
        left = "HEAD~1"
    lines: dict[str, set[int]] = {}
    for path, first, length in re.findall(
        r"^\+\+\+ b/(\S+)|^@@ \S+ \+(\d+)(?:,(\d+))? @@", git("diff", "--unified=0", left, "--", "dphmm"), re.MULTILINE
    ):
        if path:
            here = lines.setdefault(path, set())
        else:
            here.update(range(int(first), int(first) + int(length or 1)))
    return {path: found for path, found in lines.items() if path.endswith(".py") and path.count("/") > 1}


@dataclass
class Trial:
    """A mutant that stands in a copy and meets its tests, a few lists of them one after the other."""

    tree: Path
    mutant: Mutant
    rounds: list[list[str]]
    reach: Reach
    met: int = 0
    begun: float = field(default_factory=time.monotonic)
    stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self.stack.enter_context(standing(self.tree, self.mutant))
        self.run = self._next()

    def _next(self) -> Run:
        tests = self.rounds.pop(0)
        self.met += len(tests)
        least, times = PATIENCE
        return against(self.tree, self.mutant, tests, least + times * sum(map(self.reach.cost, tests)))

    def verdict(self) -> Verdict | None:
        """What became of it; None as long as tests run."""
        code = self.run.ended()
        if code is None:
            return None
        if code == 0 and self.rounds:
            self.run = self._next()
            return None
        self.stack.close()
        if code == NO_TESTS:
            raise RuntimeError(f"none of the tests of {self.mutant.path}:{self.mutant.line} was found")
        return Verdict(self.mutant, code != 0, self.met, round(time.monotonic() - self.begun, 1))


def rounds(mutant: Mutant, reach: Reach, there: set[str], seconds: tuple[float, float]) -> list[list[str]]:
    """The tests that a mutant meets first, and those that it meets when it survives these."""
    own, others = reach.tests(mutant, there)
    if not own and not others:
        stage = Path(mutant.path).parts[1]
        others = sorted((test for test in there if test.startswith(f"tests/{stage}/")), key=reach.cost)
    first = [*own, *affordable(others, reach.cost, seconds[0])]
    met = set(first)
    rest = affordable([test for test in others if test not in met], reach.cost, seconds[1])
    return [tests for tests in (first, list(rest)) if tests]


def verdicts(chosen: list[Mutant], reach: Reach, trees: list[Path], seconds: tuple[float, float]) -> Iterator[Verdict]:
    """What becomes of each, as it is known; as many at a time as there are copies."""
    there = set.intersection(*map(every_test, trees))
    waiting, free, trials = list(reversed(chosen)), list(trees), list[Trial]()
    try:
        while waiting or trials:
            while free and waiting:
                mutant = waiting.pop()
                trials.append(Trial(free.pop(), mutant, rounds(mutant, reach, there, seconds), reach))
            for trial in list(trials):
                verdict = trial.verdict()
                if verdict is not None:
                    trials.remove(trial)
                    free.append(trial.tree)
                    yield verdict
            time.sleep(0.02)
    finally:
        for trial in trials:
            trial.run.until = 0.0
            trial.run.ended()


def _read(path: Path) -> list[Verdict]:
    return [Verdict(Mutant(**one.pop("mutant")), **one) for one in json.loads(path.read_text())]


@click.command(help=__doc__)
@click.option("--count", default=300, show_default=True, help="How many mutants.")
@click.option("--seed", default=1, show_default=True, help="Which ones.")
@click.option("--stages", help=f"Folders of the package, with commas. [default: {STAGES}; with --changed, all]")
@click.option("--workers", default=os.cpu_count() or 1, show_default=True, help="Copies of the project at work.")
@click.option("--seconds", default=20.0, show_default=True, help="Of tests that a mutant meets first.")
@click.option("--more-seconds", default=300.0, show_default=True, help="Of tests that it meets then.")
@click.option("--reach", "kept", type=click.Path(path_type=Path), help="A folder that keeps what each test reaches.")
@click.option("--again", type=click.Path(exists=True, path_type=Path), help="Those that survived, of this --json.")
@click.option("--changed", "only_changed", is_flag=True, help="Of lines that changed alone.")
@click.option("--base", default="main", show_default=True, help="With --changed: since HEAD left this.")
@click.option("--survivors", type=int, help="Exit code 1 where more than this survive.")
@click.option("--json", "to", type=click.Path(path_type=Path), help="Every mutant and its fate, to this file.")
def main(
    count: int, seed: int, stages: str | None, workers: int, seconds: float, more_seconds: float,
    kept: Path | None, again: Path | None, only_changed: bool, base: str, survivors: int | None, to: Path | None,
) -> None:  # fmt: skip
    wanted = ["tests", "dphmm"]
    if only_changed:
        lines = changed(base)
        names = sorted({Path(path).parts[1] for path in lines})
        names = [name for name in names if stages is None or name in stages.split(",")]
        chosen = sample(names, count, seed, lines)
        wanted = [at for name in names for at in (f"tests/{name}", f"dphmm/{name}") if (ROOT / at).exists()]
        if not chosen:
            click.echo("no line of a stage changed that a mutant could differ in")
            return
    elif again:
        former = [(one.mutant, relocated(one.mutant)) for one in _read(again) if not one.killed]
        chosen = [now for _, now in former if now is not None]
        for then in (then for then, now in former if now is None):
            click.echo(f"     {then.path}:{then.line} is gone: {then.before!r} -> {then.after!r}")
    else:
        chosen = sample((stages or STAGES).split(","), count, seed)
    done = _read(to) if to and to.exists() else []
    met = {one.mutant for one in done}
    chosen = [mutant for mutant in chosen if mutant not in met]
    load_libraries()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        at = kept or Path(folder) / "reach"
        if not at.exists():
            click.echo(f"Running the tests of {', '.join(wanted)} once, to see what they reach ...")
        reach = (
            Reach(at)
            if at.exists()
            else Reach.measure(at, workers, [*wanted, *(["-m", "not slow"] if only_changed else [])])
        )
        trees = [copied(Path(folder) / str(worker)) for worker in range(workers)]
        for verdict in verdicts(chosen, reach, trees, (seconds, more_seconds)):
            done.append(verdict)
            mutant = verdict.mutant
            fate = f"{'killed' if verdict.killed else 'SURVIVED'} ({verdict.tests} tests, {verdict.seconds:.0f} s)"
            click.echo(f"{len(done):>4}/{len(chosen) + len(met)} {mutant.path}:{mutant.line} {fate}")
            if not verdict.killed:
                click.echo(f"        {mutant.before!r} -> {mutant.after!r}")
            if to:
                to.write_text(json.dumps([asdict(one) for one in done], indent=1) + "\n")
    killed = sum(verdict.killed for verdict in done)
    click.echo(f"{killed} of {len(done)} killed ({killed / max(1, len(done)):.1%})")
    if survivors is not None and len(done) - killed > survivors:
        raise click.ClickException(
            f"{len(done) - killed} survive, more than {survivors}: write the tests that they lack"
        )


if __name__ == "__main__":
    main()
