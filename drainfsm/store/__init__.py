"""The checkpoint store: the authority for restarts.

<root>/generations/<generation_id>/…   files of the ranks, manifest.json
<root>/commits/00000042.json           claims and commits, one total order
<root>/marks/00000042-…                that the slot was written, and its digest
<root>/store.json                      which store it is
<root>/requeue/000007.json             what the attempt after epoch 7 must restore
<root>/drills/…                        whether a generation could be read back, and when
<root>/rehearsals/…                    which scenario of a drain passed with the job, and when
"""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote_to_bytes, urlsplit

from drainfsm.errors import ConfigError
from drainfsm.store.base import ObjectStore
from drainfsm.store.commits import Claimed, CommitLog, Head
from drainfsm.store.posix import PosixStore

__all__ = ["Claimed", "CommitLog", "Head", "ObjectStore", "PosixStore", "open_store"]

OBJECT_SCHEMES = ("s3", "gs", "az")


def open_store(url: str) -> ObjectStore:
    """The store at a path, a ``file://`` URL or an object store's URL. Touches nothing yet.

    Raises:
        ConfigError: the URL is not of a known kind of store.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        if not url:
            raise ConfigError("store: empty; give a directory or a URL such as s3://bucket/path")
        return PosixStore(Path(url).expanduser())
    if scheme == "file":
        parts = urlsplit(url)
        if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
            raise ConfigError(f"store {url!r}: a file URL has three slashes and an absolute path")
        return PosixStore(Path(os.fsdecode(unquote_to_bytes(parts.path))))
    if scheme in OBJECT_SCHEMES:
        return _open_objects(url)
    known = ", ".join(f"{known}://" for known in ("file", *OBJECT_SCHEMES))
    raise ConfigError(f"store {url!r}: {scheme}:// is not supported; give a path, {known}")


def _open_objects(url: str) -> ObjectStore:
    try:
        from drainfsm.store.objects import ObjectsStore
    except ImportError as error:
        raise ConfigError(
            f"store {url!r} needs the package obstore: install it with "
            "`pip install 'drainfsm[objectstore]'`"
        ) from error
    return ObjectsStore(url)
