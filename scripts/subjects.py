"""Print the modules of each subject by layer, and report synonyms of subjects.

Usage: python -m scripts.subjects
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from dphmm.cli.commands import COMMANDS, FILES

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "dphmm"

# Subject → its synonyms, which are not allowed in names of files.
SUBJECTS: dict[str, tuple[str, ...]] = {
    "attack": ("attacks",),
    "audit": ("audits", "auditing"),
    "batch": ("batches",),
    "calibrate": ("calibrated", "calibration", "calibrations"),
    "certificate": ("certificates", "certify", "proof", "proofs"),
    "counts": ("count", "counting"),
    "evaluation": ("evaluate", "evaluations"),
    "events": ("event",),
    "explore": ("explorer", "exploration"),
    "flows": ("flow",),
    "hide": ("hidden", "hiding"),
    "landmarks": ("landmark",),
    "leakage": ("leak", "leaks"),
    "model": ("models",),
    "policy": ("policies",),
    "release": ("releases", "released", "reporting"),
    "serve": ("relay", "server"),
}

# Folders in which a subject has one module or one folder, named after it.
LAYERS = ("jobs", "plots", "cli", "writers", "evaluation/figures")

# Layer → its modules that serve several subjects.
SHARED = {
    "jobs": {"input_data", "progress", "region_map", "state_sequences"},
    "plots": {"basemap", "canvas", "maps", "webmap"},
    "cli": {"commands", "exit_codes", "console", "json_lines", "demo", "keys", "session", "shared_options"},
    "writers": {"formats", "geopackage", "release_table", "summary", "synthetic_paths"},
    "evaluation/figures": {"base", "dphmm"},
}

# Subject → other subjects that may name its modules: an audit of policies is `audit/policy.py`.
ASPECTS = {
    "audit": {"events", "leakage", "model", "policy"},
    "attack": {"flows"},
    "certificate": {"events"},
    "evaluation": {"counts", "landmarks", "leakage"},
    "serve": {"explore", "hide"},
}

# File that is exempt from the rules → reason.
EXCEPTIONS = {
    "dphmm/plots/audit_report.py": "the page of an audit, apart from its pictures",
    "dphmm/plots/release_report.py": "the page of releases, apart from their pictures",
    "dphmm/evaluation/figures/leakage_runtime.py": "one figure of the paper on leakage, as long as all the others",
    "dphmm/serve/server.py": "the HTTP server, a part of the relay",
    "dphmm/model/model.py": "the class after which the subject is called",
}


def list_modules() -> list[Path]:
    """List the package's modules, as paths relative to the root."""
    return sorted(path.relative_to(ROOT) for path in PACKAGE.rglob("*.py") if not path.stem.startswith("__"))


def find_layer(module: Path) -> str | None:
    """Find the layer of `LAYERS` that contains a module, or None."""
    folder = module.relative_to("dphmm").parent.as_posix()
    return max((layer for layer in LAYERS if f"{folder}/".startswith(f"{layer}/")), key=len, default=None)


def find_subject(module: Path) -> str | None:
    """Find the subject to which a module belongs, or None if it serves several subjects."""
    parts = module.relative_to("dphmm").with_suffix("").parts
    if layer := find_layer(module):
        name = parts[len(Path(layer).parts)]
        return next((subject for subject in SUBJECTS if name == subject or name.startswith(f"{subject}_")), None)
    return parts[0] if parts[0] in SUBJECTS else None


def find_flaws(modules: list[Path]) -> list[str]:
    """Describe the modules that break the rule of one name per subject."""
    synonyms = {word: subject for subject, words in SUBJECTS.items() for word in words}
    flaws = []
    homes: dict[tuple[str, str], set[str]] = {}
    for module in modules:
        if str(module) in EXCEPTIONS:
            continue
        subject = find_subject(module)
        layer = find_layer(module)
        stem = module.stem
        if layer and subject:
            home = module.relative_to(Path("dphmm") / layer).parts[0]
            homes.setdefault((layer, subject), set()).add(home.removesuffix(".py"))
        if layer and subject is None and stem not in SHARED[layer]:
            flaws.append(f"{module}: neither a subject nor a shared module")
        for word in stem.split("_"):
            if word in synonyms and not (subject == synonyms[word] and stem == word):
                flaws.append(f"{module}: '{word}' is a synonym of '{synonyms[word]}'")
            elif word in SUBJECTS and word != subject and word not in ASPECTS.get(subject or "", ()):
                flaws.append(f"{module}: contains the name of the subject '{word}'")
    flaws += [
        f"dphmm/{layer}: '{subject}' has several modules: {', '.join(sorted(names))}"
        for (layer, subject), names in sorted(homes.items())
        if len(names) > 1
    ]
    return flaws


def find_command_flaws(modules: Mapping[str, str]) -> list[str]:
    """Describe the commands named after a subject or its synonym that are in another module.

    Parameters
    ----------
    modules
        Command → the name of its module in `dphmm.cli`.
    """
    subjects = {word: subject for subject, words in SUBJECTS.items() for word in (subject, *words)}
    return [
        f"dphmm {command}: in dphmm/cli/{module}.py instead of dphmm/cli/{subjects[command]}.py"
        for command, module in modules.items()
        if subjects.get(command, module) != module
    ]


def main() -> int:
    """Print a table of subjects and layers, and the flaws. Return 1 if there are any."""
    modules = list_modules()
    for subject in SUBJECTS:
        print(subject)
        layers: dict[str, list[str]] = {}
        for module in modules:
            if find_subject(module) == subject:
                layers.setdefault(find_layer(module) or subject, []).append(module.name)
        for layer, names in layers.items():
            print(f"  {layer:<20}{', '.join(names)}")
    flaws = [*find_flaws(modules), *find_command_flaws({name: FILES.get(name, name) for name in COMMANDS})]
    print(*flaws, sep="\n")
    return bool(flaws)


if __name__ == "__main__":
    sys.exit(main())
