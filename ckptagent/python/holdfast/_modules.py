"""Which modules a running process has imported, for standbys to import ahead.

Only modules of the standard library and of installed packages: a user's own files may act when they are imported.
"""

import os
import sys

#: A datagram of the kernel's default size carries this much with room to spare.
MAX_BYTES = 120 * 1024


def hook_runs():
    """Whether our site hook ran in this process: what a standby needs to be held before the script."""
    return "_holdfast_site" in sys.modules


def client_reports():
    """The client reports after the first steps, which is better than the site hook's guess by time."""
    site = sys.modules.get("_holdfast_site")
    if site is not None:
        site.client_reports()


def names():
    """Importable names in the order in which they were imported."""
    stdlib = os.path.dirname(os.__file__) + os.sep
    found, size = [], 0
    for name, module in list(sys.modules.items()):
        if not _wanted(name, module, stdlib):
            continue
        size += len(name) + 3
        if size > MAX_BYTES:
            break
        found.append(name)
    return found


def _wanted(name, module, stdlib):
    if name.partition(".")[0] in ("__main__", "__mp_main__", "sitecustomize", "usercustomize", "holdfast", "holdfast_standby", "_holdfast_site"):
        return False
    spec = getattr(module, "__spec__", None)
    if spec is None or spec.name != name:
        return False
    if spec.origin in ("built-in", "frozen"):
        return True
    path = spec.origin or ""
    if os.sep + "site-packages" + os.sep in path or os.sep + "dist-packages" + os.sep in path:
        return True
    return path.startswith(stdlib)
