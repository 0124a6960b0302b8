"""Copies tensors from CUDA devices into the arena.

With HOLDFAST_REGISTER=1 the copies run on a separate stream. At the first save from a device a thread registers the arena's
slots with the driver, which may take seconds; after that the device writes to the slots directly. Without registration a copy
goes through the driver's buffers. Registrations end with the process. The module never initializes a device, so a forked
process inherits no device.
"""

import contextlib
import ctypes
import os
import sys
import threading
import time

_PORTABLE = 1  # cudaHostRegisterPortable: for all devices of the process
_RELAXED = 2  # cudaStreamCaptureModeRelaxed
#: Row lengths, in words, of a digest's column sums, for large tensors and for others. Primes: swapped rows change the sums,
#: unless the prime divides their distance.
_ROW, _SHORT = 8191, 1021
_LOOK = 0.0005
#: How long the end of a process waits for copies and registrations.
AT_END = 10.0


class Runtime:
    """The CUDA runtime that torch has loaded, for Holdfast's threads. Calls by ctypes release the interpreter's lock safely even
    while the interpreter ends; torch's bindings do not."""

    def __init__(self, path):
        self._lib = ctypes.CDLL(path)
        self._register = self._lib.cudaHostRegister
        self._register.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
        self._exchange = self._lib.cudaThreadExchangeStreamCaptureMode

    def enter(self, device):
        """Sets the calling thread's device, and keeps its calls out of graphs that other threads capture. Returns an error or
        0."""
        return self._cleared(self._exchange(ctypes.byref(ctypes.c_int(_RELAXED))) or self._lib.cudaSetDevice(device))

    def register(self, at, nbytes):
        return self._cleared(self._register(at, nbytes, _PORTABLE))

    def _cleared(self, error):
        if error:
            self._lib.cudaGetLastError()  # otherwise torch reports it as an error of its own call
        return error


def runtime():
    """The runtime that this process has loaded; None if there is none or it cannot be called."""
    try:
        with open("/proc/self/maps", errors="surrogateescape") as maps:
            for line in maps:
                path = line.rstrip("\n").split(maxsplit=5)[5:]
                if path and os.path.basename(path[0]).startswith("libcudart"):
                    return Runtime(path[0])
    except (OSError, AttributeError):  # no such file, or it lacks a function
        pass
    return None


def is_on_one(t):
    return t.is_cuda


class Devices:
    """Device operations of one checkpoint."""

    def __init__(self, say):
        self._say = say
        self._on = os.environ.get("HOLDFAST_REGISTER") == "1"
        self._sides = {}  # device -> Holdfast's stream there
        self._lib = self._registering = None
        self._begun = self._ending = False
        self.refused = 0  # the driver's error if a registration failed

    def register(self, leaves, slots):
        """Once a leaf is on a device, registers in a thread each (at, nbytes, made) of slots(): nbytes from address at, if made()
        is true."""
        torch = sys.modules.get("torch")
        if not self._on or self._begun or torch is None or not torch.cuda.is_initialized():
            return
        device = next((t.device for t in leaves if isinstance(t, torch.Tensor) and is_on_one(t)), None)
        if device is None:
            return
        self._begun = True
        try:
            self._lib = runtime()
            if self._lib is not None:
                self._registering = threading.Thread(target=self._register, args=(device.index or 0, slots()), name="holdfast-register", daemon=True)
                self._registering.start()
        except Exception as e:  # copies still work without, but slower
            self._registering = None
            self._say("copies from the device go through the driver's buffers: %s: %s" % (type(e).__name__, e))

    def _register(self, device, slots):
        error = self._lib.enter(device)
        for at, nbytes, made in slots:
            if error or self._ending or not made():
                break
            error = self._lib.register(at, nbytes)
        if error:
            self.refused = error
            self._say("copies from the device go through the driver's buffers, as it cannot register the arena's memory: CUDA error %d" % error)

    def end(self):
        """Stops registering at the end of the process."""
        self._ending = True
        if self._registering is not None:
            self._registering.join(AT_END)

    @contextlib.contextmanager
    def copied(self, pairs):
        """Copies device sources to views, (view, source) each, with the values at this point of the script's streams. The body of
        the with statement runs meanwhile; at its end the copies are complete."""
        here = pairs
        if pairs and self._on:
            try:
                for device, of in _by_device(pairs):
                    self._copy(device, of)
                here = ()
            except Exception as e:
                self._give_up(e)
            except BaseException:
                self._wait()
                raise
        try:
            yield
        finally:
            if pairs and self._on:
                self._wait()
        with sys.modules["torch"].no_grad() if here else contextlib.nullcontext():
            for view, source in here:
                view.copy_(_resolved(source))

    def _wait(self):
        """Waits for all copies that were begun: none writes later."""
        for side in self._sides.values():
            side.synchronize()

    def _give_up(self, error):
        """Uses torch's synchronous copies from now on."""
        self._on = False
        self._wait()
        self._say("copies from the device are synchronous from now on: %s: %s" % (type(error).__name__, error))

    def _side(self, device):
        cuda = sys.modules["torch"].cuda
        side = self._sides.get(device)
        if side is None:
            side = self._sides[device] = cuda.Stream(device=device)
        side.wait_stream(cuda.current_stream(device))
        return side

    def _copy(self, device, pairs):
        torch = sys.modules["torch"]
        side = self._side(device)
        with torch.no_grad(), torch.cuda.stream(side):
            for view, source in pairs:
                view.copy_(_resolved(source), non_blocking=True)
        return side

    def can_aside(self):
        """Whether copies can be overlapped: one of Holdfast's threads must be able to wait for them while a graph is captured."""
        return self._lib is not None and self._on

    def digests(self, sources):
        """A digest per device, of the tensors at this point of the script's streams."""
        torch = sys.modules["torch"]
        out = []
        with torch.no_grad():
            for device, of in _by_device([(t, t) for t in sources]):
                with torch.cuda.device(device):
                    out.append(digest(torch, [t for t, _ in of]))
        return out

    def aside(self, pairs):
        """Begins to copy beside training, (view, source) each; returns an Aside."""
        before = self.digests([source for _, source in pairs])  # on the script's own streams, so before all that it queues later
        try:
            return Aside(self._lib, [(self._copy(device, of), of, was) for (device, of), was in zip(_by_device(pairs), before)])
        except BaseException:
            self._wait()
            raise


class Aside:
    """A copy beside training. The device reads the source again right after the copy."""

    def __init__(self, lib, copies):
        torch, self._lib, self._sames = sys.modules["torch"], lib, []
        for side, pairs, was in copies:
            with torch.no_grad(), torch.cuda.stream(side):
                same = (digest(torch, [source for _, source in pairs]) == was).all()
            self._sames.append((side, same, was))  # was lies in memory of the script's stream, which must not be reused before

    def wait(self):
        """Waits until the copies are complete. Any thread may call it: it does not change the thread's device."""
        for side, _, _ in self._sames:
            side.synchronize()

    def equal(self):
        """Waits until the copies are complete; returns whether their sources stayed equal. Only for Holdfast's threads. It polls,
        so that the interpreter's end never finds them inside torch while the device is busy."""
        torch, good = sys.modules["torch"], True
        for side, _, _ in self._sames:
            good = not self._lib.enter(side.device.index) and good
            while not side.query():
                time.sleep(_LOOK)
        for side, same, _ in self._sames:
            with torch.cuda.stream(side):
                good = bool(same.item()) and good
        return good


def capturing():
    """Whether the script is capturing a graph: then nothing may wait."""
    return sys.modules["torch"].cuda.is_current_stream_capturing()


def same(before, after):
    """Whether digests of the same tensors are equal. Waits for the device."""
    return all(bool((a == b).all().item()) for a, b in zip(before, after))


def digest(torch, tensors):
    """Sums of the words of contiguous tensors, by columns, and the remaining bytes: a write changes some of them."""
    sums = []
    for t in tensors:  # few calls: within save, each call costs more than its work on the device
        n, left = divmod(t.nbytes, 8)
        flat = t.detach().view(-1)
        if left:
            raw = flat.view(torch.uint8)
            sums.append(raw[8 * n :].to(torch.int64))
            flat = raw[: 8 * n]
        row = _ROW if n >= 64 * _ROW else _SHORT  # a digest needs memory, too: two rows at most
        words, rows = flat.view(torch.int64), n // row
        sums += [words.as_strided((rows, row), (row, 1)).sum(0), words[rows * row :]]
    return torch.cat(sums)


def _resolved(t):
    """The tensor with pending conjugation and negation applied. A copy from a device would apply these to the view at once,
    before the data has arrived, and twice to a view that is not contiguous (pytorch/pytorch#146286)."""
    return t.resolve_conj().resolve_neg()


def fill(into, saved):
    """Copies a plain tensor in this process's memory. torch applies the target's pending conjugation or negation right only on
    the same device, as in _resolved."""
    into.copy_(saved.to(into.device) if into.is_conj() or into.is_neg() else saved)


def _by_device(pairs):
    found = {}
    for view, source in pairs:
        found.setdefault(source.device, []).append((view, source))
    return list(found.items())
