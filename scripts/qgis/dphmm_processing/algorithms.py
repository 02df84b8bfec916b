"""Which algorithms there are: their parameters, and the words of the command that each becomes.

A parameter is a kind, a name, a description, its default (None: it may be left out) and its words; `{}` stands for its
value. A layer is handed over as GeoJSON, a place as LAT,LON. An output's kind is what its file ends in.
"""

REQUIRED = object()

POINTS = ("points", "DATA", "Points with times (field 'time'; 'user' where there are several people)", REQUIRED, "{}")
MODEL = ("file", "MODEL", "Model of 'dphmm learn' (.npz)", REQUIRED, "--model {}")
POLICY = ("text", "POLICY", "Policy: what must stay indistinguishable", "utility:1km", "--policy {}")

ALGORITHMS = {
    "release": (
        "Release a layer",
        "Each place with the noise that a policy and a budget ask for, and the best estimate of each moment.",
        "release",
        POINTS,
        MODEL,
        POLICY,
        ("number", "DAY_EPSILON", "Privacy budget of any 24 hours (epsilon)", 3.0, "--day-epsilon {}"),
        ("gpkg", "RELEASES", "Releases", REQUIRED, "-o {}"),
    ),
    "hide": (
        "Hide near places",
        "A recording without what lies in a zone about a place. The zone does not tell where in it the place is.",
        "hide",
        ("points", "DATA", "Points of one recording, with times", REQUIRED, "{}"),
        ("place", "PLACE", "A place to hide", REQUIRED, "--near {}"),
        ("number", "METRES", "No point is told within this many metres of it", 500.0, "--within {}m"),
        ("geojson", "HIDDEN", "What may be told", REQUIRED, "-o {}"),
    ),
    "audit": (
        "Audit a policy layer",
        "Which states a policy that joins the places of each polygon leaves exposed: a report with its map.",
        "audit policy",
        MODEL,
        (
            "polygons",
            "ZONES",
            "Policy: places within a polygon must stay indistinguishable",
            REQUIRED,
            "--policy zone:{}",
        ),
        ("number", "EPSILON", "Privacy budget that levels are told at", 1.0, "--epsilon {}"),
        ("html", "REPORT", "Report", REQUIRED, "--report {}"),
    ),
    "flows": (
        "Flows between areas",
        "Visits, flows and stays by area, with a promise for whole people.",
        "flows",
        POINTS,
        ("polygons", "AREAS", "Areas", REQUIRED, "--areas {}"),
        ("text", "LABEL", "Field that names an area", None, "--label {}"),
        ("number", "USER_EPSILON", "Privacy budget of each person", 1.0, "--user-epsilon {}"),
        ("gpkg", "FLOWS", "Tables", REQUIRED, "-o {}"),
        ("html", "PAGE", "A page to read and to sign", None, "--report {}"),
    ),
    "attack": (
        "Attack a blurring",
        "What ways of blurring give away of these people. The page tells true places: PRIVATE must be in its name.",
        "attack",
        POINTS,
        MODEL,
        (
            "text",
            "CHANNEL",
            "A way to blur: round:3, android, offset:500m, release:utility:1km@1",
            "round:3",
            "--channel {}",
        ),
        ("html", "PRIVATE_PAGE", "Page", REQUIRED, "-o {}"),
    ),
}
