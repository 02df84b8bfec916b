# The public names, imported on first use (lazy_loader reads this file); type checkers read it too.
from .attack import build_attack_sections, draw_attack_figure, summarize_attack
from .audit import draw_event_probability
from .audit_report import build_audit_sections
from .basemap import Basemap, PlaceName, build_world_basemap, extract_basemap, read_basemap
from .calibrate import draw_calibration_figure, draw_trade_off
from .canvas import draw_steps
from .evaluation import draw_evaluation_figures, draw_figure
from .landmarks import draw_landmark_budget
from .leakage import draw_leakage, draw_leakage_budgets, draw_loss_function, draw_supremum
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
from .model import draw_model_figure
from .release import ReleaseMap, show
from .release_report import report
from .webmap import MapLayer, MapPolicy, build_web_map

__all__ = [
    "Basemap",
    "MapLayer",
    "MapPolicy",
    "PlaceName",
    "ReleaseMap",
    "build_attack_sections",
    "build_audit_sections",
    "build_web_map",
    "build_world_basemap",
    "draw_attack_figure",
    "draw_basemap",
    "draw_calibration_figure",
    "draw_density",
    "draw_edges",
    "draw_estimates",
    "draw_evaluation_figures",
    "draw_event_probability",
    "draw_figure",
    "draw_hull",
    "draw_landmark_budget",
    "draw_leakage",
    "draw_leakage_budgets",
    "draw_loss_function",
    "draw_model_figure",
    "draw_noise",
    "draw_outlines",
    "draw_releases",
    "draw_space",
    "draw_steps",
    "draw_supremum",
    "draw_track",
    "draw_trade_off",
    "extract_basemap",
    "read_basemap",
    "report",
    "show",
    "summarize_attack",
]
