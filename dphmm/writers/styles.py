"""How the layers of a GeoPackage look in QGIS: its own style documents, in the table where it looks for them."""

from __future__ import annotations

from typing import Any, NamedTuple


class Style(NamedTuple):
    """A layer's style.

    Attributes
    ----------
    description
        What the layer is.
    symbols
        The symbol layers of its one symbol: QGIS's class → its options, from the lowest.
    kind
        QGIS's name of the symbol's kind: ``"marker"`` or ``"line"``.
    """

    description: str
    symbols: tuple[tuple[str, dict[str, str], dict[str, str]], ...]
    kind: str


_DOT = {"name": "circle", "outline_style": "no", "size_unit": "MM"}
_CIRCLE = {
    "name": "circle",
    "color": "230,126,34,25",
    "outline_color": "230,126,34,110",
    "outline_width": "0.2",
    "size_unit": "RenderMetersInMapUnits",
}

STYLES = {
    "estimates": Style(
        "The best estimate of each moment; its radius is how far off the model expects it.",
        (
            ("SimpleMarker", {**_CIRCLE, "size": "1000"}, {"size": '2 * "estimate_radius_m"'}),
            ("SimpleMarker", {**_DOT, "color": "211,84,0,255", "size": "1.4"}, {}),
        ),
        "marker",
    ),
    "released": Style(
        "What was drawn, where something was: a place with noise, further off than the estimate.",
        (
            (
                "SimpleMarker",
                {**_DOT, "name": "cross2", "color": "120,120,120,255", "size": "1.8", "outline_style": "solid"},
                {},
            ),
        ),
        "marker",
    ),
    "tracks": Style(
        "A line through the estimates of each trip.",
        (("SimpleLine", {"line_color": "41,128,185,200", "line_width": "0.5", "line_width_unit": "MM"}, {}),),
        "line",
    ),
}
"""Layer → its style."""


def style_rows(changed: str) -> list[dict[str, Any]]:
    """The rows of the table ``layer_styles``, one for each layer, as QGIS reads them.

    Parameters
    ----------
    changed
        When the styles were last changed, ISO 8601.
    """
    return [
        {
            "f_table_catalog": "",
            "f_table_schema": "",
            "f_table_name": layer,
            "f_geometry_column": "geom",
            "styleName": layer,
            "styleQML": _qml(style),
            "styleSLD": "",
            "useAsDefault": True,
            "description": style.description,
            "owner": "dphmm",
            "ui": "",
            "update_time": changed,
        }
        for layer, style in STYLES.items()
    ]


def _qml(style: Style) -> str:
    """A QGIS layer definition with a single symbol."""
    layers = "".join(_symbol_layer(*one) for one in style.symbols)
    symbol = f'<symbol type="{style.kind}" name="0" alpha="1" clip_to_extent="1" force_rhr="0">{layers}</symbol>'
    return (
        "<!DOCTYPE qgis PUBLIC 'http://mrcc.com/qgis.dtd' 'SYSTEM'>"
        '<qgis version="3.28" styleCategories="Symbology">'
        f'<renderer-v2 type="singleSymbol" symbollevels="0" enableorderby="0"><symbols>{symbol}</symbols></renderer-v2>'
        "</qgis>"
    )


def _symbol_layer(name: str, options: dict[str, str], expressions: dict[str, str]) -> str:
    from xml.sax.saxutils import quoteattr

    said = "".join(
        f"<Option type='QString' name={quoteattr(key)} value={quoteattr(text)}/>" for key, text in options.items()
    )
    driven = "".join(
        f"<Option type='Map' name={quoteattr(key)}><Option type='bool' name='active' value='true'/>"
        f"<Option type='QString' name='expression' value={quoteattr(text)}/>"
        "<Option type='int' name='type' value='3'/></Option>"
        for key, text in expressions.items()
    )
    properties = f"<Option type='Map'><Option type='Map' name='properties'>{driven}</Option></Option>"
    return (
        f'<layer class="{name}" enabled="1" locked="0" pass="0"><Option type="Map">{said}</Option>'
        f"<data_defined_properties>{properties}</data_defined_properties></layer>"
    )
