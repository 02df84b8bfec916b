"""Algorithms: their parameters, and the words of the command for each parameter.

A parameter is a kind, a name, a description, a default (None: optional) and its words, where `{}` stands for its value.
A layer is passed as GeoJSON, a place as LAT,LON. The kind of an output is the ending of its file.
"""

REQUIRED = object()

POINTS = ("points", "DATA", "Points with times (field 'time'; field 'user' if there are several users)", REQUIRED, "{}")
MODEL = ("file", "MODEL", "Model of 'dphmm learn' (.npz)", REQUIRED, "--model {}")
POLICY = ("text", "POLICY", "Policy: locations that must remain indistinguishable", "utility:1km", "--policy {}")

ALGORITHMS = {
    "release": (
        "Release a layer",
        "Releases each location with noise according to a policy and a budget, with an estimate for each timestep.",
        "release",
        POINTS,
        MODEL,
        POLICY,
        ("number", "DAY_EPSILON", "Privacy budget of any 24 hours (epsilon)", 3.0, "--window-epsilon {}"),
        ("gpkg", "RELEASES", "Releases", REQUIRED, "-o {}"),
    ),
    "hide": (
        "Hide near places",
        "Removes points in a zone around a place. The zone does not reveal where in it the place is.",
        "hide",
        ("points", "DATA", "Points of one recording, with times", REQUIRED, "{}"),
        ("place", "PLACE", "A place to hide", REQUIRED, "--near {}"),
        ("number", "METRES", "Radius around the place without any point, in metres", 500.0, "--within {}m"),
        ("geojson", "HIDDEN", "Public recording", REQUIRED, "-o {}"),
    ),
    "audit": (
        "Audit a policy layer",
        "Reports with a map which states are exposed under a policy that connects the locations of each polygon.",
        "audit policy",
        MODEL,
        (
            "polygons",
            "ZONES",
            "Policy: locations within a polygon must remain indistinguishable",
            REQUIRED,
            "--policy zone:{}",
        ),
        ("number", "EPSILON", "Privacy budget of a release (epsilon)", 1.0, "--epsilon {}"),
        ("html", "REPORT", "Report", REQUIRED, "--report {}"),
    ),
    "flows": (
        "Flows between areas",
        "Counts visits, flows and stays by area with user-level differential privacy.",
        "flows",
        POINTS,
        ("polygons", "AREAS", "Areas", REQUIRED, "--areas {}"),
        ("text", "LABEL", "Field with the name of an area", None, "--label {}"),
        ("number", "USER_EPSILON", "Privacy budget of each user (epsilon)", 1.0, "--user-epsilon {}"),
        ("gpkg", "FLOWS", "Tables", REQUIRED, "-o {}"),
        ("html", "PAGE", "Report for review and signature", None, "--report {}"),
    ),
    "attack": (
        "Attack an obfuscation mechanism",
        "Measures the inference from obfuscated data. The page shows true locations: its name must contain PRIVATE.",
        "attack",
        POINTS,
        MODEL,
        (
            "text",
            "CHANNEL",
            "Obfuscation mechanism: round:3, android, offset:500m, release:utility:1km@1",
            "round:3",
            "--channel {}",
        ),
        ("html", "PRIVATE_PAGE", "Page", REQUIRED, "-o {}"),
    ),
}
