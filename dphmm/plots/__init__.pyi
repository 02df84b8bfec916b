# The public names, imported on first use (lazy_loader reads this file); type checkers read it too.
from .audit_report import audit_sections
from .calibration import trade_off
from .evaluation import evaluation_figures
from .events import event_over_time
from .landmarks import budget_and_loss, error_by_share
from .leakage import approach_to_supremum, budgets_over_time, leakage_over_time, loss_pieces
from .maps import draw_edges, draw_estimates, draw_hull, draw_outlines, draw_releases, draw_space, draw_track
from .model import model_figure
from .releases import ReleaseMap
from .showing import show
from .webmap import MapLayer, web_map

__all__ = [
    "MapLayer",
    "ReleaseMap",
    "approach_to_supremum",
    "audit_sections",
    "budget_and_loss",
    "budgets_over_time",
    "draw_edges",
    "draw_estimates",
    "draw_hull",
    "draw_outlines",
    "draw_releases",
    "draw_space",
    "draw_track",
    "error_by_share",
    "evaluation_figures",
    "event_over_time",
    "leakage_over_time",
    "loss_pieces",
    "model_figure",
    "show",
    "trade_off",
    "web_map",
]
