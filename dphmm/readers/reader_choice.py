"""Recognition of the format of a file, folder or archive.

Registered readers precede the formats of this package: they know their files, while a table or JSON is recognised by
its form alone. `dphmm.tables.file_identification` identifies the content of a file.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Sequence
from io import BytesIO
from itertools import chain
from pathlib import Path, PurePosixPath

from dphmm.errors import ConfigurationError, DataFileError, EmptyDataError, NotRecordingError
from dphmm.readers.delimited_data_sets import CAB_NAME
from dphmm.readers.formats import FORMATS, Reader, find_readers, refuse_failures
from dphmm.tables.file_identification import identify
from dphmm.tables.source import Document, documents, get_suffix, is_archive, is_database_in_use, iterate_member_names
from dphmm.validation import check_arguments

_FORMAT_NAMES = ", ".join(sorted(FORMATS))


@check_arguments
def recognise(path: str | Path) -> str:
    """Recognise the format of a file, folder or archive.

    Parameters
    ----------
    path
        The file, folder or archive.

    Returns
    -------
    str
        A key of `FORMATS`, or the name of a registered reader.

    Raises
    ------
    DataFileError
        If it is unreadable or of no known format.
    EmptyDataError
        If it contains no file, or an empty one of a format that its extension does not determine.
    ConfigurationError
        If a folder or archive contains several formats, or several registered readers recognise a file.
    MissingExtensionError
        If a registered reader cannot be imported.
    """
    data_set = find_data_set(path)
    if data_set is not None:
        return data_set
    check_zipped_document(path)
    readers = find_readers()
    formats: set[str] = set()
    problems = []
    for document in documents(path):
        try:
            formats.add(recognise_document(document, readers))
        except DataFileError as problem:
            problems.append(problem)
    if len(formats) > 1:
        raise ConfigurationError(
            f"{path} contains several formats, {', '.join(sorted(formats))}; set format= (--input-format)"
        )
    if not formats:
        raise problems[0]
    return formats.pop()


def find_data_set(path: str | Path) -> str | None:
    """Return the format of a public data set, recognised by the names of its files.

    Parameters
    ----------
    path
        The file, folder or archive.

    Returns
    -------
    str or None
        ``"geolife"`` or ``"cabspotting"``; None for all others, and for a single file.

    Raises
    ------
    DataFileError
        If it cannot be read.
    """
    path = Path(path)
    if path.is_file() and not is_archive(path):
        return "cabspotting" if CAB_NAME.fullmatch(path.name) else None
    # Folders of these contain other text files, and their archives are long. Names of files suffice.
    for name in iterate_member_names(path):
        if CAB_NAME.fullmatch(PurePosixPath(name).name):
            return "cabspotting"
        if get_suffix(name) in FORMATS["geolife"].suffixes:
            return "geolife"
    return None


def check_zipped_document(path: str | Path) -> None:
    """Raise the error of a document that is stored as a ZIP archive, such as a workbook."""
    path = Path(path)
    if path.is_file() and not is_database_in_use(path) and zipfile.is_zipfile(path):
        kind = identify(Document(str(path), PurePosixPath(path.name), lambda: path.open("rb")).head())
        if kind is not None and kind.name != "ZIP":
            raise kind.build_error(str(path))


def recognise_document(document: Document, readers: Sequence[Reader]) -> str:
    """Return the format of a file.

    Raises
    ------
    EmptyDataError
        If it is empty, and its extension is not that of a format.
    NotRecordingError
        If it is of another format, or of no known one.
    """
    head = document.head()
    if not head.strip():
        suffix = get_suffix(document.name)
        suffixes = {*chain.from_iterable(file_format.suffixes for file_format in FORMATS.values())}
        if suffix in suffixes.union(*(reader.suffixes for reader in readers)):
            raise EmptyDataError(document.source, "is empty; export or copy it again")
        raise EmptyDataError(
            document.source,
            "is empty, so its format is unknown; set format= (--input-format) if it is one of " + _FORMAT_NAMES,
        )
    reader_name = _recognise_own(document, readers)
    if reader_name is not None:
        return reader_name
    kind = identify(head)
    if kind is None:
        raise NotRecordingError(
            document.source, "is of no known format; set format= (--input-format) if it is one of " + _FORMAT_NAMES
        )
    if kind.name == "ZIP" and not zipfile.is_zipfile(BytesIO(document.data)):
        raise NotRecordingError(document.source, "is a ZIP archive that is cut off or damaged; fetch or copy it again")
    if kind.format is None:
        raise kind.build_error(document.source)
    return kind.format


def _recognise_own(document: Document, readers: Iterable[Reader]) -> str | None:
    """Return the name of the reader that recognises a file.

    Parameters
    ----------
    document
        The file, not empty.
    readers
        The readers.

    Returns
    -------
    str or None
        The name; None if no reader recognises it.

    Raises
    ------
    ConfigurationError
        If several readers recognise it.
    DataFileError
        If a reader fails.
    """
    names = []
    for reader in readers:
        with refuse_failures(reader, document.source):
            if reader.recognises(document.head(), get_suffix(document.name)):
                names.append(reader.name)
    if len(names) > 1:
        raise ConfigurationError(
            f"{document.source} is recognised by the readers {', '.join(names)}; set format= (--input-format)"
        )
    return names[0] if names else None
