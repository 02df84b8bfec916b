"""QGIS plugin with the commands of dphmm as algorithms of Processing.

It requires no packages in the Python of QGIS.
"""


def classFactory(_interface):
    """Return the plugin. QGIS calls this function."""
    from .provider import Plugin

    return Plugin()
