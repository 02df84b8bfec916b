# The public names, imported on first use (lazy_loader reads this file); type checkers read it too.
from .attack import build_attack_sections, draw_attack_figure, summarize_attack
from .audit import draw_event_probability
from .audit_report import build_audit_sections
from .basemap import Basemap, PlaceName, extract_basemap, read_basemap, shipped_basemap
from .calibrate import draw_calibration_figure, draw_trade_off
from .canvas import draw_steps
from .evaluation import draw_figure, evaluation_figures
from .landmarks import budget_and_loss
from .leakage import approach_to_supremum, budgets_over_time, leakage_over_time, loss_pieces
from .maps import (
    draw_basemap,
    draw_density,
    draw_edges,
    draw_estimates,
    draw_hull,
    draw_noise,
    draw_outlines,
    draw_releases,
    draw_space,
    draw_track,
)
from .model import model_figure
from .release import ReleaseMap, show
from .release_report import report
from .webmap import MapLayer, MapPolicy, web_map

__all__ = [
    "Basemap",
    "MapLayer",
    "MapPolicy",
    "PlaceName",
    "ReleaseMap",
    "approach_to_supremum",
    "budget_and_loss",
    "budgets_over_time",
    "build_attack_sections",
    "build_audit_sections",
    "draw_attack_figure",
    "draw_basemap",
    "draw_calibration_figure",
    "draw_density",
    "draw_edges",
    "draw_estimates",
    "draw_event_probability",
    "draw_figure",
    "draw_hull",
    "draw_noise",
    "draw_outlines",
    "draw_releases",
    "draw_space",
    "draw_steps",
    "draw_track",
    "draw_trade_off",
    "evaluation_figures",
    "extract_basemap",
    "leakage_over_time",
    "loss_pieces",
    "model_figure",
    "read_basemap",
    "report",
    "shipped_basemap",
    "show",
    "summarize_attack",
    "web_map",
]
