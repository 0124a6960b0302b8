"""Observes imports: which modules a process imports, and when a watched module has been executed.

Finder is the first entry of sys.meta_path. Finder calls the other finders as Python would, and returns their result. So a
script's modules, loaders and errors stay the same. The module uses no thread, signal or garbage collector callback.
"""

import os
import sys
from _frozen_importlib import _find_and_load_unlocked

_IMPORT = _find_and_load_unlocked.__code__
_STDLIB = os.path.dirname(os.__file__) + os.sep
_INSTALLED = (os.sep + "site-packages" + os.sep, os.sep + "dist-packages" + os.sep)
_finder = None


def install(actions, note=None):
    """Calls actions[name](module) once after the module of that name was executed, or now if it is already loaded.

    note(name), where given, is called for every module of the standard library or an installed package that is being
    imported, before it is executed. A second call adds its actions and replaces the note.
    """
    global _finder
    if _finder is None:
        _finder = Finder()
        sys.meta_path.insert(0, _finder)
    if note is not None:
        _finder.note = note
    for name, action in actions.items():
        module = sys.modules.get(name)
        if module is not None:
            _act(action, module)
        else:
            _finder.actions[name] = action


def wanted(name, spec):
    """Whether a standby may import this module in advance: never a user's own file, which may act when it is imported."""
    if spec is None or spec.name != name:
        return False
    top = name.partition(".")[0]
    if top.startswith("_holdfast") or top in ("__main__", "__mp_main__", "sitecustomize", "usercustomize", "holdfast", "holdfast_standby"):
        return False
    origin = spec.origin
    if not origin:
        return False
    return origin in ("built-in", "frozen") or _INSTALLED[0] in origin or _INSTALLED[1] in origin or origin.startswith(_STDLIB)


def names():
    """The imported modules of this process that a standby may import in advance, in order of import."""
    return [name for name, module in list(sys.modules.items()) if wanted(name, getattr(module, "__spec__", None))]


class Finder:
    """The finder, first on sys.meta_path."""

    def __init__(self):
        self.actions, self.note = {}, None

    def find_spec(self, name, path=None, target=None):
        spec = self._behind(name, path, target)
        if spec is None:
            return None
        try:
            # Python's import calls finders through two functions; importlib.util.find_spec and reload use others. A script may
            # call find_spec at its top level, below which there is no frame.
            if sys._getframe(2).f_code is not _IMPORT:
                return spec
        except Exception:
            return spec
        try:
            if self.note is not None and wanted(name, spec):
                self.note(name)
            if name in self.actions:
                self._watch(name, spec)
        except Exception as e:  # an error of Holdfast must not end the script
            _complain(e)
        return spec

    def _behind(self, name, path, target):
        behind = False
        for finder in list(sys.meta_path):
            if behind:
                find = getattr(finder, "find_spec", None)
                if find is None:
                    return None  # Python handles such an old finder itself, by its find_module
                spec = find(name, path, target)
                if spec is not None:
                    return spec
            elif finder is self:
                behind = True
        return None

    def _watch(self, name, spec):
        """Makes the loader, which belongs to this one module, call the action once it has executed the module."""
        loader = spec.loader
        if getattr(loader, "name", None) != name:
            return
        execute = loader.exec_module

        def exec_module(module):
            del loader.exec_module
            execute(module)
            action = self.actions.pop(name, None)
            if action is not None:
                _act(action, module)

        loader.exec_module = exec_module


def _act(action, module):
    try:
        action(module)
    except Exception as e:
        _complain(e)


def _complain(error):
    print("holdfast: import hook: %s: %s" % (type(error).__name__, error), file=sys.stderr)
