"""Run algorithms of the packed plugin in QGIS without a screen.

The jobs are JSON, and the results are printed as JSON.
"""

import json
import sys


def main(packed, jobs):
    sys.path[:0] = ["/usr/share/qgis/python/plugins", packed]
    from qgis.core import QgsApplication, QgsProcessingContext, QgsProcessingFeedback, QgsProject, QgsVectorLayer

    application = QgsApplication([], False)
    application.initQgis()
    import dphmm_processing
    import processing
    from processing.core.Processing import Processing

    Processing.initialize()
    plugin = dphmm_processing.classFactory(None)
    plugin.initProcessing()
    for key, parameters in json.loads(jobs):
        context, feedback = QgsProcessingContext(), QgsProcessingFeedback()
        context.setProject(QgsProject.instance())
        try:
            result = {"outputs": processing.run(f"dphmm:{key}", parameters, context=context, feedback=feedback)}
        except Exception as problem:
            result = {"failed": str(problem)}
        loaded = [(uri, QgsVectorLayer(uri, key, "ogr")) for uri in context.layersToLoadOnCompletion()]
        result["layers"] = {uri.rpartition("=")[2]: layer.featureCount() for uri, layer in loaded if layer.isValid()}
        print("FOUND", json.dumps([key, result]), flush=True)
    plugin.unload()


if __name__ == "__main__":
    main(*sys.argv[1:])
