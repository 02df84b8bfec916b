"""Extensions by other packages: classes found by registration or by entry points.

A file never causes an import by itself: it contains a name, and the name must be that of a class registered in this
process or of an entry point of an installed distribution.
"""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from importlib.metadata import entry_points
from typing import Any, Generic, TypeVar

from dphmm.errors import ConfigurationError, MissingExtensionError

Base = TypeVar("Base")

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,30}")


class Registry(Generic[Base]):
    """The extensions of one type, by name.

    Parameters
    ----------
    base
        The class that extensions inherit from.
    group
        The group of entry points, such as ``"dphmm.mechanisms"``. The name of an entry point is that of the extension.
    shipped
        Names that extensions cannot have.
    """

    def __init__(self, base: type[Base], group: str, shipped: tuple[str, ...]) -> None:
        self._base = base
        self._group = group
        self._shipped = shipped
        self._classes: dict[str, type[Base]] = {}

    def register(self, extension: type[Base]) -> type[Base]:
        """Register a class under its attributes ``name`` and ``version``. Usable as a decorator.

        Parameters
        ----------
        extension
            The class. It states its own ``name`` and ``version``; inherited ones do not count.

        Returns
        -------
        type
            The class.

        Raises
        ------
        ConfigurationError
            If it does not inherit from the base class, its name or version is invalid, or the name belongs to a class
            of this package or to another registered class.
        """
        if not (isinstance(extension, type) and issubclass(extension, self._base)):
            raise ConfigurationError(f"an extension of {self._group} must inherit from {self._base.__name__}")
        name, version = (vars(extension).get(field) for field in ("name", "version"))
        label = f"{extension.__module__}.{extension.__qualname__}"
        if not isinstance(name, str) or not _NAME.fullmatch(name) or name in self._shipped:
            raise ConfigurationError(
                f"name of {label} must be its own, in lower case with hyphens and not one of "
                f"{', '.join(self._shipped)}, got {name!r}"
            )
        if not isinstance(version, str) or not _VERSION.fullmatch(version):
            raise ConfigurationError(f"version of {label} must be a string such as '1.0', got {version!r}")
        previous = self._classes.get(name)
        # A module that is executed again, as in a notebook, replaces its own class.
        previous_label = label if previous is None else f"{previous.__module__}.{previous.__qualname__}"
        if previous_label != label:
            raise ConfigurationError(f"name {name!r} of {label} is that of {previous_label}")
        self._classes[name] = extension
        return extension

    def find(self, name: str, version: str | None = None) -> type[Base]:
        """Return a class by its name. Entry points are loaded at the first use.

        Parameters
        ----------
        name
            The name.
        version
            The required version. Defaults to any.

        Returns
        -------
        type
            The class.

        Raises
        ------
        MissingExtensionError
            If no such class is registered or installed, or in another version, if several packages declare the name,
            or if the entry point cannot be imported, or is not a valid class of this name.
        """
        extension = self._classes.get(name) or self._load(name, version)
        installed: Any = vars(extension)["version"]
        if version not in (None, installed):
            raise build_missing_error(self._group, name, version, f"version {installed} is installed")
        return extension

    def list_names(self) -> list[str]:
        """Return the sorted names of registered and installed extensions, without imports.

        Installed packages are listed once in each process, unless ``sys.path`` changes.
        """
        return sorted({*self._classes, *_list_installed(self._group, tuple(sys.path))})

    def _load(self, name: str, version: str | None) -> type[Base]:
        points = tuple(entry_points(group=self._group, name=name))
        if not points:
            raise build_missing_error(self._group, name, version)
        targets = sorted({point.value for point in points})
        if len(targets) > 1:
            reason = f"{' and '.join(targets)} are declared under this name"
            raise build_missing_error(self._group, name, version, reason)
        try:
            extension: type[Base] = points[0].load()
        except (Exception, SystemExit) as problem:  # the module can raise any error, or end like a script
            is_clear = isinstance(problem, (ImportError, AttributeError, ConfigurationError))
            text = str(problem) if is_clear else f"{type(problem).__name__}: {problem}"
            reason = f"{targets[0]} cannot be imported: {' '.join(text.split())}"
            raise build_missing_error(self._group, name, version, reason) from problem
        try:
            own_name = vars(extension).get("name") if isinstance(extension, type) else None
            if own_name not in (name, None):
                raise ConfigurationError(f"the entry point must be a class of this name, got {own_name!r}")
            return self.register(extension)
        except ConfigurationError as problem:
            reason = f"{targets[0]} cannot be registered: {problem}"
            raise build_missing_error(self._group, name, version, reason) from None


# The metadata of all installed packages are read, which takes longer than reading a small file of trajectories.
@lru_cache(maxsize=16)
def _list_installed(group: str, search_path: tuple[str, ...]) -> frozenset[str]:  # noqa: ARG001 - a part of the key
    return frozenset(point.name for point in entry_points(group=group))


def build_missing_error(
    group: str, name: str, version: str | None = None, reason: str = "", provider: str | None = None
) -> MissingExtensionError:
    """Build the error for an extension that is missing, or installed in another version.

    Parameters
    ----------
    group
        The group of entry points.
    name, version
        The name and the required version; None for any.
    reason
        The reason, if an extension of this name is installed.
    provider
        The module that provides it, if it is known.
    """
    kind = group.removeprefix("dphmm.").removesuffix("s")
    wanted = f"{name!r}" if version is None else f"{name!r} {version}"
    but = f", but {reason}" if reason else ""
    module = "the module that registers it" if provider is None else provider
    return MissingExtensionError(
        f"{kind} {wanted} must be installed or registered{but}; install the package that declares it as an entry "
        f"point of {group}, or import {module}"
    )
