"""Files that appear whole or not at all, and what they hold."""

import json
import os
import uuid
from pathlib import Path
from typing import Any

import orjson


def as_json(value: Any) -> bytes:
    """JSON of a value; half of a pair of characters, which no file can hold, becomes a question mark."""
    try:
        return orjson.dumps(value, default=str, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY)
    except TypeError:
        return json.dumps(value, default=str, ensure_ascii=False).encode(errors="replace")


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file through a temporary one in the same folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")  # with the permissions of any new file
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
