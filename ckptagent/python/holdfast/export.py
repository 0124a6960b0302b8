"""Exports a step from storage to files that stock tools read: torch.distributed.checkpoint, torch.load, safetensors.

    python -m holdfast.export JOB_FOLDER --to dcp OUT

The command needs torch and the job's folder, but no agent, cluster or process group. See docs/checkpoints.md.
"""

import argparse
import collections
import functools
import os
import sys

from . import _folder, _pickles, _planned, _union, _write
from ._folder import ExportError

__all__ = ["ExportError", "Report", "export"]

#: The exported step. differ: key -> ranks whose value differs from the lowest rank's and also appears under rank-N.
#: left: key -> the type of a value that was left out. passed: why newer manifests were rejected.
Report = collections.namedtuple("Report", "generation step ranks entries bytes differ left passed")


def export(folder, out, to="dcp", step=None, trust=False):
    """Writes a complete step of a job's folder to out, which must not exist, and returns a Report. Takes the newest step, or the
    newest with the given number. Raises ExportError, which has the file or tensor, and the remedy."""
    if to not in _write.WRITERS:
        raise ExportError("there is no format %r; there are %s" % (to, ", ".join(_write.WRITERS)))
    if os.path.lexists(out):
        raise ExportError("%s exists already: choose another path, nothing is overwritten" % out)
    if not os.path.isdir(os.path.dirname(os.path.abspath(out))):
        raise ExportError("the folder of %s does not exist: create it first" % out)
    chosen, passed = _folder.choose(folder, step)
    try:
        __import__("torch")
    except ImportError as e:
        raise ExportError("exporting needs torch, which this Python (%s) lacks: use the Python that trains" % sys.executable) from e
    files = [_folder.RankFile(folder, chosen, rank) for rank in range(len(chosen.ranks))]
    union = _united(files, trust)
    _write.write(to, union, out)
    return Report(chosen.generation, chosen.step, len(files), len(union.entries), sum(f.length for f in files), union.differ, union.left, passed)


def _united(files, trust):
    states = [_state(f, trust) for f in files]
    planned = [isinstance(s, _planned.Held) for s in states]
    if any(planned) and not all(planned):
        raise ExportError("ranks %s were saved by holdfast.dcp and the others were not: export another step" % [r for r, p in enumerate(planned) if p])
    return _planned.unite(states, functools.partial(_planned.load, trusted=trust)) if all(planned) else _union.unite(states)


def _state(file, trust):
    file.check_data()
    try:
        state = _union.State(file.map, _folder.DATA, file.length, functools.partial(_pickles.load, trust=trust))
        if state.names() == [_planned.NAME]:
            return _planned.Held(state, file.path)
        return {name: state.value(name, borrow=True) for name in state.names()}
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as e:
        raise ExportError("%s: its state has a format that this program does not support (%s): use the client of a newer image" % (file.path, e)) from e


def _words(report, to, out):
    yield "exported step %d of generation %d (%d ranks, %d bytes, %d names) to %s, for %s" % (report.step, report.generation, report.ranks, report.bytes, report.entries, out, to)
    for text in report.passed:
        yield text
    for name, ranks in report.differ.items():
        yield "%s is the lowest rank's value; ranks %s hold another: each rank's own is rank-<rank>.%s" % (name, ", ".join(map(str, ranks)), name)
    for name, what in report.left.items():
        yield "left out: %s (%s)" % (name, what)
    if report.left and to == "dcp":
        yield "a value that was left out would run code when it is read; export with --trust if only the job can write to this folder"


def main(args=None):
    parser = argparse.ArgumentParser(prog="python -m holdfast.export", description="exports a step from storage to files that stock tools read")
    parser.add_argument("folder", help="a job's folder in storage: <mount>/<gang name>-<job UID>")
    parser.add_argument("out", help="the folder (dcp) or file to write; it must not exist")
    parser.add_argument("--to", required=True, choices=list(_write.WRITERS), help="dcp: for torch.distributed.checkpoint.load; torch: for torch.load; safetensors: tensors only")
    parser.add_argument("--step", type=int, help="the step to export; default: the newest complete one")
    parser.add_argument("--trust", action="store_true", help="unpickle values of any type: only if no one but the job can write to the folder")
    a = parser.parse_args(args)
    try:
        report = export(a.folder, a.out, a.to, a.step, a.trust)
    except ExportError as e:
        print("holdfast.export: %s" % e, file=sys.stderr)
        return 1
    print("\n".join(_words(report, a.to, a.out)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
