"""Names of the mechanisms, their noise bodies, and the mechanisms of other packages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Annotated, Any, Literal, get_args

from dphmm.errors import ConfigurationError, GuaranteeError
from dphmm.extensions import Registry
from dphmm.geometry.sensitivity_hull import Body
from dphmm.mechanisms.base import Mechanism
from dphmm.validation import Choice

# The name of a mechanism in settings, on the command line and in records.
MechanismName = Literal[
    "lattice", "k-norm", "laplace", "planar-isotropic", "planar-laplace", "optimal", "graph-exponential"
]

# All names, the exact one first.
MECHANISMS: tuple[MechanismName, ...] = get_args(MechanismName)

# The noise body of each mechanism: a state may be exposed under one and protected under another.
BODY_BY_MECHANISM: Mapping[MechanismName, Body] = MappingProxyType(
    {
        "lattice": "hull",
        "k-norm": "hull",
        "laplace": "cross-polytope",
        "planar-isotropic": "hull",
        "planar-laplace": "disc",
        "optimal": "hull",
        "graph-exponential": "hull",
    }
)

# Mechanisms that sample with integers only, so that the guarantee is exact in finite precision.
EXACT_COLUMN: frozenset[MechanismName] = frozenset({"lattice", "optimal", "graph-exponential"})

# Mechanisms that sample from a table over the states of a connected component instead of adding noise.
TABLE_MECHANISMS: frozenset[MechanismName] = frozenset({"optimal", "graph-exponential"})

# Mechanisms for two-dimensional measurements only.
PLANAR_MECHANISMS: frozenset[MechanismName] = frozenset({"planar-isotropic", "planar-laplace"})


class _MechanismRegistry(Registry[Mechanism]):
    """Mechanisms by name. Each states a valid noise body."""

    def register(self, extension: type[Mechanism]) -> type[Mechanism]:
        """Register a mechanism. See `register_mechanism`."""
        body = getattr(extension, "noise_body", "hull")
        if body not in get_args(Body):
            raise ConfigurationError(
                f"noise_body of {extension.__module__}.{extension.__qualname__} must be one of "
                f"{', '.join(get_args(Body))}, got {body!r}"
            )
        return super().register(extension)


# The mechanisms of other packages.
MECHANISM_REGISTRY = _MechanismRegistry(Mechanism, "dphmm.mechanisms", MECHANISMS)  # type: ignore[type-abstract]  # an abstract class is intended


def register_mechanism(mechanism: type[Mechanism]) -> type[Mechanism]:
    """Register a mechanism under its `name` and `version`. Usable as a decorator.

    Parameters
    ----------
    mechanism
        The class.

    Returns
    -------
    type
        The class.

    Raises
    ------
    ConfigurationError
        If it is not a mechanism, its name, version or noise body is invalid, or the name belongs to another mechanism.
    """
    return MECHANISM_REGISTRY.register(mechanism)


def resolve_mechanism(setting: str) -> str:
    """Return the name of a mechanism in records, with the version of a registered one.

    A name of this package is unchanged, another one becomes ``name@version``.

    Parameters
    ----------
    setting
        A name of this package's, or the name of a registered or installed mechanism with or without its version.

    Returns
    -------
    str
        The name.

    Raises
    ------
    MissingExtensionError
        If no such mechanism is registered or installed, or in another version.
    """
    if setting in MECHANISMS:
        return setting
    mechanism = find_mechanism(setting)
    return f"{mechanism.name}@{mechanism.version}"


def find_mechanism(setting: str) -> type[Mechanism]:
    """Return the class of a registered mechanism by its name, with or without ``@version``."""
    name, _, version = setting.partition("@")
    return MECHANISM_REGISTRY.find(name, version or None)


@contextmanager
def translate_mechanism_errors(mechanism: str, is_private: bool = False) -> Iterator[None]:
    """Raise a `GuaranteeError` that names a registered mechanism if the block fails.

    Parameters
    ----------
    mechanism
        The name in settings. Errors of mechanisms of this package are unchanged.
    is_private
        Whether the block reads the true state, which the text of an error could contain. The message omits it.
    """
    try:
        yield
    except GuaranteeError:
        raise
    except Exception as problem:  # a registered mechanism can raise any error
        if mechanism in MECHANISMS:
            raise
        kind = type(problem).__name__
        text = kind if is_private else " ".join(f"{kind}: {problem}".split())
        # A traceback with the cause would contain its text.
        cause = None if is_private else problem
        raise GuaranteeError(f"mechanism {mechanism!r} failed: {text}; the release was aborted") from cause


class _MechanismChoice(Choice):
    """A name of this package's, or one of the form of a registered mechanism's."""

    def __init__(self) -> None:
        super().__init__(*MECHANISMS)
        object.__setattr__(self, "text", f"{self.text}, or a registered mechanism")
        object.__setattr__(self, "accepts", _is_known)


def _is_known(value: Any) -> bool:
    # One with a version, as in a file, is refused later with the reason: it is missing, or of another version.
    if not isinstance(value, str) or value in MECHANISMS:
        return isinstance(value, str)
    return "@" in value or value in MECHANISM_REGISTRY.list_names()


# A `MechanismName`, or the name of a registered mechanism, with or without its version: ``"elliptic@1.0"``.
MechanismLike = Annotated[str, _MechanismChoice()]


def get_noise_body(mechanism: str) -> Body:
    """Return the noise body of a mechanism by its name in settings."""
    shipped = {str(name): body for name, body in BODY_BY_MECHANISM.items()}
    return shipped.get(mechanism) or find_mechanism(mechanism).noise_body


def is_exact_mechanism(mechanism: str) -> bool:
    """Return whether a mechanism samples with integers only, by its name in settings."""
    return mechanism in EXACT_COLUMN if mechanism in MECHANISMS else find_mechanism(mechanism).is_exact


def is_lattice_mechanism(mechanism: str) -> bool:
    """Return whether values are lattice coordinates, by the mechanism's name in settings."""
    return mechanism == "lattice" or (mechanism not in MECHANISMS and is_exact_mechanism(mechanism))
