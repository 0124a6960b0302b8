"""Python runs this module in every process before the first line of a script. The module first runs the `sitecustomize` that
Python would have run without Holdfast, then starts the site hook (see docs/python.md)."""

import sys


def _chain():
    """Loads the next sitecustomize on the path in our place."""
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    path = [p for p in sys.path if os.path.abspath(p or ".") != here]
    finder = sys.modules["_frozen_importlib_external"].PathFinder
    spec = finder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    module = sys.modules["_frozen_importlib"].module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


try:
    _chain()
finally:
    try:
        import _holdfast_site

        _holdfast_site.run()
    except Exception as e:  # the script matters more than we do
        print("holdfast: site hook: %s: %s" % (type(e).__name__, e), file=sys.stderr)
