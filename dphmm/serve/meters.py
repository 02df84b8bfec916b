"""What the relay counts, in the words of Prometheus. No count is about one person."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from dphmm.serve.keeper import Outcome

if TYPE_CHECKING:
    from dphmm.serve.outbox import Deliveries

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Meters:
    """Counts since the start: fixes by what became of them, requests by how long they took."""

    def __init__(self) -> None:
        self._fixes = Outcome()
        self._requests: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}

    def add(self, outcome: Outcome) -> None:
        """Count the fixes of a message."""
        self._fixes.add(outcome)

    def took(self, path: str, seconds: float) -> None:
        """Count a request."""
        counts = self._requests.setdefault(path, [0] * (len(_BOUNDS) + 1))
        counts[next((k for k, bound in enumerate(_BOUNDS) if seconds <= bound), len(_BOUNDS))] += 1
        self._seconds[path] = self._seconds.get(path, 0.0) + seconds

    def text(self, deliveries: Mapping[str, Deliveries]) -> str:
        """Everything, in Prometheus' text format."""
        lines = ["# HELP dphmm_fixes_total Fixes by what became of them.", "# TYPE dphmm_fixes_total counter"]
        lines += [
            f'dphmm_fixes_total{{outcome="{one.name}"}} {getattr(self._fixes, one.name)}' for one in fields(Outcome)
        ]
        name = "dphmm_request_seconds"
        lines += [f"# HELP {name} How long messages took.", f"# TYPE {name} histogram"]
        for path, counts in self._requests.items():
            total = 0
            for bound, count in zip((*_BOUNDS, "+Inf"), counts, strict=True):
                total += count
                lines.append(f'{name}_bucket{{path="{path}",le="{bound}"}} {total}')
            lines.append(f'{name}_sum{{path="{path}"}} {self._seconds[path]:.6f}')
            lines.append(f'{name}_count{{path="{path}"}} {total}')
        name = "dphmm_messages_total"
        lines += [f"# HELP {name} Messages to recipients.", f"# TYPE {name} counter"]
        for recipient, told in deliveries.items():
            label = recipient.replace("\\", "\\\\").replace('"', '\\"')
            for one in fields(told):
                lines.append(f'{name}{{recipient="{label}",outcome="{one.name}"}} {getattr(told, one.name)}')
        return "\n".join(lines) + "\n"
