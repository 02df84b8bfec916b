"""Where people go: tables of visits and flows with a promise for whole people.

Two data sets are neighbours when one has one person more than the other, with all of that person's data. Tables are
made of visits and trips, of which a bounded number of each person count, with exact noise in every cell.

- `Areas`: between which people move, cells or polygons within districts.
- `FlowSettings`: which tables, what of a person counts, classes of time, how the budget is dealt.
- `NoisyTable`: a table that may be published, with intervals and whole numbers of which all sums agree.

`dphmm.jobs.flows` makes them of trajectories.
"""

from dphmm.flows.areas import Areas
from dphmm.flows.noisy_tables import NoisyTable
from dphmm.flows.settings import FlowSettings

__all__ = ["Areas", "FlowSettings", "NoisyTable"]
