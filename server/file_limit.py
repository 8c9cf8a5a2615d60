"""Every connection takes a file descriptor, and shells give processes few."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

_WANTED = 65_536
_FEW = 4_096


def raise_file_limit() -> None:
    """Take as many descriptors as the system lets this process have; warn if these are few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _WANTED if hard == resource.RLIM_INFINITY else min(_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    if soft != resource.RLIM_INFINITY and soft < _FEW:
        logger.warning("the system allows %d open files, so about as many connections: raise ulimit -n", soft)
