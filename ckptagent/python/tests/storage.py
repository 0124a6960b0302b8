"""Writes a job's folder by docs/formats/storage.md; shares only the checksum table with the code that reads it."""

import json
import os
import struct

from holdfast._arena import crc32c


def put(folder, generation, step, states):
    """Writes a complete step: states are the data of each rank."""
    path = os.path.join(folder, "gen-%d" % generation)
    os.makedirs(path, exist_ok=True)
    ranks = []
    for rank, data in enumerate(states):
        crc = crc32c(data)
        header = struct.pack("<8sIIQQQII", b"HFRANKFL", 1, rank, step, generation, len(data), crc, len(states)).ljust(124, b"\0")
        with open(os.path.join(path, "step-%d.rank-%d" % (step, rank)), "wb") as f:
            f.write((header + struct.pack("<I", crc32c(header))).ljust(4096, b"\0") + data)
        ranks.append({"length": len(data), "crc32c": crc})
    with open(os.path.join(path, "step-%d.manifest.json" % step), "w") as f:
        json.dump({"version": 1, "step": step, "generation": generation, "ranks": ranks}, f, indent=1)
