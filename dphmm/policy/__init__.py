"""What must stay indistinguishable: policy graphs, degrees of protection, repairs."""

from dphmm.policy.expression import parse_policy
from dphmm.policy.graph import PolicyGraph
from dphmm.policy.protection import Method, Protection, degree_of_protection, exposed_states, protect
from dphmm.policy.repair import Objective

__all__ = [
    "Method",
    "Objective",
    "PolicyGraph",
    "Protection",
    "degree_of_protection",
    "exposed_states",
    "parse_policy",
    "protect",
]
