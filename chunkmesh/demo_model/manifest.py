"""Checksums of a folder's files, kept in a manifest beside them.

A folder whose manifest is missing or does not fit is not used. Everything is read in full: 540 MB
take 0.4 s where the processor computes SHA-256 itself.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from chunkmesh.json_text import parse_json

MANIFEST_FILE = "chunkmesh_manifest.json"


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_manifest(folder: Path, *, source_sha256: str) -> None:
    """Record every file of the folder and the digest of what it was made from."""
    files = {path.name: sha256_of(path) for path in sorted(folder.iterdir())}
    content = {"source_sha256": source_sha256, "files": files}
    (folder / MANIFEST_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def find_damage(folder: Path, *, source_sha256: str) -> str | None:
    """Say what is wrong with the folder, or None if every file is as it was written."""
    try:
        manifest = parse_json((folder / MANIFEST_FILE).read_bytes())
        files: dict[str, str] = dict(manifest["files"])
        source = manifest["source_sha256"]
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MANIFEST_FILE} is missing or unreadable"
    if source != source_sha256:
        return f"it was made from another file, {source}"
    for name, expected in files.items():
        try:
            actual = sha256_of(folder / name)
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if actual != expected:
            return f"{name} has SHA-256 {actual}, not {expected}"
    return None
