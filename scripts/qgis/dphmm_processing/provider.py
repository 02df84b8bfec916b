"""Provider of Processing with the table of algorithms."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from qgis.core import (
    QgsApplication,
    QgsCoordinateReferenceSystem,
    QgsDataProvider,
    QgsFeatureRequest,
    QgsProcessing,
    QgsProcessingAlgorithm,
    QgsProcessingContext,
    QgsProcessingException,
    QgsProcessingParameterFeatureSource,
    QgsProcessingParameterFile,
    QgsProcessingParameterFileDestination,
    QgsProcessingParameterNumber,
    QgsProcessingParameterPoint,
    QgsProcessingParameterString,
    QgsProcessingProvider,
    QgsVectorFileWriter,
    QgsVectorLayer,
)

from .algorithms import ALGORITHMS, REQUIRED

WGS84 = QgsCoordinateReferenceSystem("EPSG:4326")
LAYERS = {"points": QgsProcessing.TypeVectorPoint, "polygons": QgsProcessing.TypeVectorPolygon}
SIMPLE = {
    "text": QgsProcessingParameterString,
    "place": QgsProcessingParameterPoint,
    "file": QgsProcessingParameterFile,
}


class Algorithm(QgsProcessingAlgorithm):
    """An algorithm of the table."""

    def __init__(self, key):
        super().__init__()
        self._key = key
        self._title, self._help, self._command, *self._rows = ALGORITHMS[key]

    def createInstance(self):
        return Algorithm(self._key)

    def name(self):
        return self._key

    def displayName(self):
        return self._title

    def shortHelpString(self):
        return self._help

    def initAlgorithm(self, _configuration=None):
        for kind, name, description, default, _ in self._rows:
            options = {"optional": default is None, "defaultValue": None if default is REQUIRED else default}
            if kind in LAYERS:
                parameter = QgsProcessingParameterFeatureSource(name, description, types=[LAYERS[kind]], **options)
            elif kind == "number":
                parameter = QgsProcessingParameterNumber(
                    name, description, QgsProcessingParameterNumber.Double, minValue=0, **options
                )
            elif kind in SIMPLE:
                parameter = SIMPLE[kind](name, description, **options)
            else:
                parameter = QgsProcessingParameterFileDestination(name, description, f"{kind} (*.{kind})", **options)
            self.addParameter(parameter)

    def processAlgorithm(self, parameters, context, feedback):
        command = shutil.which("dphmm")
        if command is None:
            raise QgsProcessingException("the command 'dphmm' is not on the PATH: pip install 'dphmm[files,plots]', then add its folder in Settings, Options, System, Environment")  # fmt: skip  # noqa: E501
        outputs, words = {}, self._command.split()
        with tempfile.TemporaryDirectory() as folder:
            for kind, name, _, _, form in self._rows:
                value = self._read_value(kind, name, Path(folder), parameters, context)
                if value not in (None, ""):
                    words += [word.format(value) for word in form.split()]
                    outputs.update({name: value} if kind not in (*LAYERS, *SIMPLE, "number") else {})
            if any(os.path.exists(path) for path in outputs.values()):
                words.append("--overwrite")  # QGIS has asked for confirmation
            self._run([command, *words], feedback)
        for path in outputs.values():
            for title in _list_layers(path):
                details = QgsProcessingContext.LayerDetails(title or Path(path).stem, context.project())
                context.addLayerToLoadOnCompletion(f"{path}|layername={title}" if title else path, details)
        return outputs

    def _read_value(self, kind, name, folder, parameters, context):
        """Return the value of a parameter in the command."""
        if kind in LAYERS:
            source = self.parameterAsSource(parameters, name, context)
            if source is None:
                raise QgsProcessingException(self.invalidSourceError(parameters, name))
            request = QgsFeatureRequest().setDestinationCrs(WGS84, context.transformContext())
            path, options = str(folder / f"{name.lower()}.geojson"), QgsVectorFileWriter.SaveVectorOptions()
            options.driverName = "GeoJSON"
            failed = QgsVectorFileWriter.writeAsVectorFormatV2(
                source.materialize(request), path, context.transformContext(), options
            )
            if failed[0]:
                raise QgsProcessingException(f"{name}: {failed[1]}")
            return path
        if kind == "place":
            point = self.parameterAsPoint(parameters, name, context, WGS84)
            return f"{point.y():.6f},{point.x():.6f}"
        if kind == "number":
            return f"{self.parameterAsDouble(parameters, name, context):g}"
        if kind in SIMPLE:
            return self.parameterAsString(parameters, name, context)
        return self.parameterAsFileOutput(parameters, name, context)

    def _run(self, words, feedback):
        """Run the command and show its output. If it fails, its last line is the reason."""
        kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
        line = ""
        with subprocess.Popen(words, text=True, encoding="utf-8", env=kept, **pipes) as process:
            for line in process.stdout:
                feedback.pushInfo(line.rstrip())
                if feedback.isCanceled():
                    process.terminate()
        if process.returncode and not feedback.isCanceled():
            raise QgsProcessingException(line.strip())


def _list_layers(path):
    """Return the names of the spatial layers of an output. That of GeoJSON is empty."""
    if path.endswith(".geojson"):
        return [""]
    if not path.endswith(".gpkg"):
        return []
    opened = QgsVectorLayer(path, "", "ogr")  # in a variable: deleting the layer would delete its provider
    parts = [layer.split(QgsDataProvider.sublayerSeparator()) for layer in opened.dataProvider().subLayers()]
    return [part[1] for part in parts if part[3] not in ("None", "Unknown (any)")]


class Provider(QgsProcessingProvider):
    """The provider of all algorithms."""

    def loadAlgorithms(self):
        for key in ALGORITHMS:
            self.addAlgorithm(Algorithm(key))

    def id(self):
        return "dphmm"

    def name(self):
        return "dphmm: private locations"


class Plugin:
    """The plugin, which registers the provider while it is active."""

    def initProcessing(self):
        self.provider = Provider()
        QgsApplication.processingRegistry().addProvider(self.provider)

    initGui = initProcessing

    def unload(self):
        QgsApplication.processingRegistry().removeProvider(self.provider)
