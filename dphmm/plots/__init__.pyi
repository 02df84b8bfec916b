# The public names, imported on first use (lazy_loader reads this file); type checkers read it too.
from .attack import attack_figure, attack_sections, attack_verdict, calibration_figure
from .audit_report import audit_sections
from .basemap import Basemap, PlaceName, extract_basemap, read_basemap, shipped_basemap
from .curves import (
    approach_to_supremum,
    budget_and_loss,
    budgets_over_time,
    draw_steps,
    error_by_share,
    event_over_time,
    leakage_over_time,
    loss_pieces,
    trade_off,
)
from .evaluation import evaluation_figures
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
from .models import model_figure
from .paper_figures import draw_figure
from .releases import ReleaseMap, show
from .reporting import report
from .webmap import MapLayer, MapPolicy, web_map

__all__ = [
    "Basemap",
    "MapLayer",
    "MapPolicy",
    "PlaceName",
    "ReleaseMap",
    "approach_to_supremum",
    "attack_figure",
    "attack_sections",
    "attack_verdict",
    "audit_sections",
    "budget_and_loss",
    "budgets_over_time",
    "calibration_figure",
    "draw_basemap",
    "draw_density",
    "draw_edges",
    "draw_estimates",
    "draw_figure",
    "draw_hull",
    "draw_noise",
    "draw_outlines",
    "draw_releases",
    "draw_space",
    "draw_steps",
    "draw_track",
    "error_by_share",
    "evaluation_figures",
    "event_over_time",
    "extract_basemap",
    "leakage_over_time",
    "loss_pieces",
    "model_figure",
    "read_basemap",
    "report",
    "shipped_basemap",
    "show",
    "trade_off",
    "web_map",
]
