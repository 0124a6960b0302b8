"""Which modules a running process has imported, for standbys to import ahead.

Only modules of the standard library and of installed packages: a user's own files may act when they are imported.
"""

import json
import os
import sys

#: A datagram carries this much with room to spare; a longer list goes through a file.
MAX_BYTES = 100 * 1024


def hook_runs():
    """Whether our site hook ran in this process: what a standby needs to be held before the script."""
    return "_holdfast_site" in sys.modules


def client_reports():
    """The client reports after the first steps, which is better than the site hook's guess by time."""
    site = sys.modules.get("_holdfast_site")
    if site is not None:
        site.client_reports()


def report(send):
    """Tells the agent the names by send(modules=[...]); returns whether it has been told."""
    found = names()
    path = os.environ.get("HOLDFAST_MODULES_FILE")
    if path and sum(map(len, found)) + 3 * len(found) > MAX_BYTES:
        part = "%s.%d" % (path, os.getpid())
        try:
            with open(part, "w") as f:
                json.dump(found, f)
            os.replace(part, path)
        except OSError:
            return False
        found = []  # the agent looks into the file
    return send(modules=found)


def names():
    """Importable names in the order in which they were imported."""
    stdlib = os.path.dirname(os.__file__) + os.sep
    return [name for name, module in list(sys.modules.items()) if _wanted(name, module, stdlib)]


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
