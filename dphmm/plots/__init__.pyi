# The public names, imported on first use (lazy_loader reads this file); type checkers read it too.
from .attack import attack_figure, attack_sections, attack_verdict
from .audit_report import audit_sections
from .bands import draw_steps
from .basemap import Basemap, PlaceName, shipped_basemap
from .basemap_files import read_basemap
from .calibration import trade_off
from .evaluation import evaluation_figures
from .events import event_over_time
from .landmarks import budget_and_loss, error_by_share
from .leakage import approach_to_supremum, budgets_over_time, leakage_over_time, loss_pieces
from .maps import draw_basemap, draw_edges, draw_hull, draw_noise, draw_outlines, draw_space
from .model import model_figure
from .releases import ReleaseMap
from .reporting import report
from .showing import show
from .tracks import draw_density, draw_estimates, draw_releases, draw_track
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
    "draw_basemap",
    "draw_density",
    "draw_edges",
    "draw_estimates",
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
