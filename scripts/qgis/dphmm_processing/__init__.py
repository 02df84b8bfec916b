"""A plugin of QGIS: the commands of dphmm as algorithms of Processing. It needs nothing in QGIS's Python."""


def classFactory(_interface):
    """What QGIS calls."""
    from .provider import Plugin

    return Plugin()
