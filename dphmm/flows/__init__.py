"""Tables of visits and flows with user-level differential privacy.

Two data sets are neighbours if one contains one additional user with all of their data. Tables contain visits and
trips, of which a bounded number per user count, with exact noise in every cell.

- `Areas`: cells or polygons within districts.
- `FlowSettings`: tables, contribution bounds, time classes and the split of the budget.
- `NoisyTable`: a publishable table with intervals and integers with consistent sums.

`dphmm.jobs.flows` builds them from trajectories.
"""

from dphmm.flows.areas import Areas
from dphmm.flows.noisy_tables import NoisyTable
from dphmm.flows.settings import FlowSettings

__all__ = ["Areas", "FlowSettings", "NoisyTable"]
