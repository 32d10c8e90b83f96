"""Bytes in a file, every one covered by a check: a header, sections, and SHA-256 over all of it.

    8 bytes    magic
    4, 8       version of the format; length of the header (little endian)
    header     JSON; says name, length and SHA-256 of each section
    sections   one after the other, nothing between
    32         SHA-256 of everything before

A transformable program is text instead: lines of JSON, the last with the SHA-256 of those before.
Both are written under another name and then moved, so that no file is ever half there.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import struct
import tempfile
from typing import Any

from malleable.errors import MalleableError

MAGIC = b"\x89MAL\r\n\x1a\n"
VERSION = 1
TEXT = '{"malleable": "transformable program", "version": '
_HEAD = struct.Struct("<IQ")
_DAMAGED = "it was damaged, cut off or changed; get it again from where it came"


def write_bytes(path, data: bytes) -> None:
    """Put bytes into a file at once: it is there whole, or as it was before."""
    target = pathlib.Path(path)
    try:
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as err:
        raise MalleableError(f"{target} cannot be written: {err.strerror}") from err
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, target)
    except OSError as err:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise MalleableError(f"{target} cannot be written: {err.strerror}") from err


def read_bytes(path) -> bytes:
    """The bytes of a file. Raises MalleableError where there is none."""
    try:
        return pathlib.Path(path).read_bytes()
    except OSError as err:
        raise MalleableError(f"{path} cannot be read: {err.strerror}") from err


def pack(header: dict, sections: dict[str, bytes]) -> bytes:
    """A header and named sections as bytes.

    >>> unpack(pack({"a": 1}, {"code": b"xyz"}))
    ({'a': 1}, {'code': b'xyz'})
    """
    table = [[name, len(x), hashlib.sha256(x).hexdigest()] for name, x in sections.items()]
    head = json.dumps({**header, "sections": table}, allow_nan=False).encode()
    data = b"".join([MAGIC, _HEAD.pack(VERSION, len(head)), head, *sections.values()])
    return data + hashlib.sha256(data).digest()


def unpack(data: bytes) -> tuple[dict, dict[str, bytes]]:
    """What `pack` packed. Raises MalleableError for another kind or version, or damage."""
    if not data.startswith(MAGIC):
        _refuse_foreign(data)
    start = len(MAGIC) + _HEAD.size
    if len(data) < start + 32:
        raise MalleableError("the file ends too early", hint=_DAMAGED)
    version, length = _HEAD.unpack_from(data, len(MAGIC))
    check_version(version)
    if hashlib.sha256(data[:-32]).digest() != data[-32:]:
        raise MalleableError("the file is not what was written", hint=_DAMAGED)
    try:
        header = json.loads(data[start : start + length])
        table = [(str(n), int(size), str(mark)) for n, size, mark in header.pop("sections")]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as err:
        raise MalleableError("the header of the file makes no sense", hint=_DAMAGED) from err
    sections, at = {}, start + length
    for name, size, mark in table:
        sections[name] = data[at : at + max(size, 0)]
        at += max(size, 0)
        if hashlib.sha256(sections[name]).hexdigest() != mark:
            raise MalleableError(f"the section {name!r} is not what was written", hint=_DAMAGED)
    if at != len(data) - 32 or len(sections) != len(table):
        raise MalleableError("the sections of the file do not fill it", hint=_DAMAGED)
    return header, sections


def check_version(version: Any) -> None:
    """Raise MalleableError for a version of the format that is not spoken here."""
    if version != VERSION or type(version) is not int:
        raise MalleableError(
            f"the file is written in version {version!r} of the format, and {VERSION} is read here",
            hint="use the malleable that wrote it, or a newer one; or the file is damaged",
        )


def _refuse_foreign(data: bytes):
    known = {
        b"PK\x03\x04": "a zip archive (or .npz)",
        b"\x93NUMPY": "an array of NumPy (.npy)",
        b"\x80": "a pickle, which is never opened here: it could run anything",
        b"ML\xefR": "MLIR bytecode",
        b"\x89HDF": "an HDF5 file",
    }
    kind = next((told for start, told in known.items() if data.startswith(start)), "")
    what = "no file of malleable.save" + (f": it is {kind}" if kind else "")
    raise MalleableError(f"this is {what}" if data else "the file is empty", hint=_DAMAGED)


# ---------------------------------------------------------------- text


def pack_text(header: dict, lines: list[str]) -> bytes:
    """A header and lines, sealed by the hash in the last line."""
    first = json.dumps({"malleable": "transformable program", "version": VERSION})
    head = json.dumps({"about": header}, ensure_ascii=False, allow_nan=False)
    text = "".join(f"{line}\n" for line in (first, head, *lines)).encode()
    return text + _seal(text)


def _seal(text: bytes) -> bytes:
    return json.dumps({"sha256": hashlib.sha256(text).hexdigest()}).encode() + b"\n"


def unpack_text(data: bytes, edited: bool = False) -> tuple[dict, list[str]]:
    """What `pack_text` packed. edited: a file changed by hand is read as far as it makes sense."""
    text, _, last = data.removesuffix(b"\n").rpartition(b"\n")
    text += b"\n"
    if not edited and data != text + _seal(text):
        hint = "load(path, edited=True) reads what was changed by hand"
        if b"\r\n" in data:
            hint = "its line ends were converted; copy it as a binary file"
        raise MalleableError("the file is not what was written", hint=f"{_DAMAGED}; {hint}")
    if not last.startswith(b'{"sha256": "'):
        raise MalleableError("the file ends too early", hint=_DAMAGED)
    try:
        first, head, *lines = text.decode().splitlines()
        told = json.loads(first)
        about = json.loads(head)["about"]
    except (ValueError, TypeError, KeyError, RecursionError) as err:
        raise MalleableError("the header of the file makes no sense", hint=_DAMAGED) from err
    if not isinstance(told, dict) or not isinstance(about, dict):
        raise MalleableError("the header of the file makes no sense", hint=_DAMAGED)
    check_version(told.get("version"))
    return about, lines
