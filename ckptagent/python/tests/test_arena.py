"""Tests the Python reader with the golden arenas that the Go codec writes."""

import json
import os
import pathlib
import shutil
import tempfile
import unittest

from holdfast import _arena as A

from .fakeagent import FakeAgent

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "format" / "testdata"


def fields(value, names):
    """A tuple in the form of Go's JSON."""
    return None if value is None else {go: getattr(value, py) for go, py in names.items()}


HEADER = {"LocalRank": "local_rank", "StateBytes": "state_bytes", "CreatedAt": "created_at", "PodUID": "pod_uid", "Slots": "slots"}
CONTROL = {"Seq": "seq", "Slot": "slot", "Generation": "generation", "Grant": "grant", "CommonStep": "common_step", "ReclaimBelow": "reclaim_below", "BarrierStep": "barrier_step", "DurableStep": "durable_step", "Branch": "branch", "DurableBranch": "durable_branch", "ReplicatedStep": "replicated_step", "ReplicatedBranch": "replicated_branch"}
CLIENT = {
    "Seq": "seq", "Generation": "generation", "PID": "pid", "RestoredStep": "restored_step", "Step": "step", "Slot": "slot",
    "Grant": "grant", "CopyStep": "copy_step", "Length": "length", "Saves": "saves", "Skipped": "skipped", "Refused": "refused",
    "Needed": "needed", "Branch": "branch", "OverlapStep": "overlap_step", "OverlapGrant": "overlap_grant",
    "Overlapped": "overlapped", "Dropped": "dropped", "Blocking": "blocking", "Reason": "reason",
    "Span": "span",
}  # fmt: skip
SLOT = {
    "State": "state", "Grant": "grant", "Generation": "generation", "Step": "step", "Length": "length", "CRC": "crc",
    "SealedAt": "sealed_at", "Branch": "branch", "Flags": "flags",
}  # fmt: skip


class GoldenArenas(unittest.TestCase):
    def test_values(self):
        files = [p for p in sorted(GOLDEN.rglob("*.arena")) if p.stem != "python"]
        self.assertGreaterEqual(len(files), 11)
        for file in files:
            with self.subTest(str(file.relative_to(GOLDEN))):
                mem = file.read_bytes()
                want = json.loads(file.with_suffix(".json").read_text())
                client = A.newer(mem[A.CLIENT : A.CLIENT + A.PAGE], A.decode_client_record)
                got_client = fields(client, CLIENT)
                if client is not None:
                    got_client["Attached"] = bool(client.flags & A.FLAG_ATTACHED)
                    got_client["Restored"] = bool(client.flags & A.FLAG_RESTORED)
                    got_client["Restoring"] = bool(client.flags & A.FLAG_RESTORING)
                    got_client["Grouped"] = bool(client.flags & A.FLAG_GROUPED)
                slots = [A.decode_slot(mem[(3 + i) * A.PAGE :][: A.RECORD]) for i in range(A.decode_header(mem).slots)]
                got = {
                    "Header": fields(A.decode_header(mem[: A.RECORD]), HEADER),
                    "Control": fields(A.newer(mem[A.CONTROL : A.CONTROL + A.PAGE], A.decode_control_record), CONTROL),
                    "Client": got_client,
                    "Slots": [fields(s, SLOT) for s in slots],
                    "Sealed": [s.step for s in slots if s and s.state == A.SEALED] or None,
                }
                self.assertEqual(got, want)

    def test_a_client_record_is_written_as_go_writes_it(self):
        mem = (GOLDEN / "full.arena").read_bytes()
        page = mem[A.CLIENT : A.CLIENT + A.PAGE]
        record = A.newer(page, A.decode_client_record)
        at = A.record_offset(0, record.seq)
        self.assertEqual(A.encode_client(record), page[at : at + A.RECORD])

    def test_every_damaged_byte_is_seen(self):
        """A torn record is ignored; of two records on a page the older remains valid. A changed byte outside of records has no
        effect."""
        for name in ("full", "two/full"):
            mem = (GOLDEN / (name + ".arena")).read_bytes()
            for at in list(range(A.RECORD)) + [A.RECORD + 7]:
                for damage in (0x01, 0x40, 0xFF):
                    with self.subTest(name, at=at, damage=damage):
                        self.see(mem, at, damage, at < A.RECORD)

    def see(self, mem, at, damage, is_record):
        def damaged(page):
            torn = bytearray(mem[page : page + A.PAGE])
            torn[at] ^= damage
            return bytes(torn)

        if is_record:
            self.assertRaises(A.ArenaError, A.decode_header, damaged(0)[: A.RECORD])
        else:
            self.assertEqual(A.decode_header(damaged(0)[: A.RECORD]), A.decode_header(mem[: A.RECORD]))
        for i in range(2):
            page = (3 + i) * A.PAGE
            was = A.decode_slot(mem[page : page + A.RECORD])
            self.assertIsNotNone(was)
            self.assertEqual(A.decode_slot(damaged(page)[: A.RECORD]), None if is_record else was)
        for page, decode in [(A.CONTROL, A.decode_control_record), (A.CLIENT, A.decode_client_record)]:
            for second in (0, A.SECOND):
                torn = bytearray(mem[page : page + A.PAGE])
                torn[second + at] ^= damage
                other = mem[page + A.SECOND - second : page + A.PAGE - second][: A.RECORD]
                want = decode(other) if is_record else A.newer(mem[page : page + A.PAGE], decode)
                self.assertIsNotNone(want)
                self.assertEqual(A.newer(bytes(torn), decode), want)

    def test_crc32c(self):
        self.assertEqual(A.crc32c(b"123456789"), 0xE3069283)
        self.assertEqual(A.crc32c(b""), 0)


class Opening(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.folder)

    def golden(self, name):
        path = os.path.join(self.folder, name)
        shutil.copy(GOLDEN / (name + ".arena"), path)
        return path

    def test_find_takes_only_sealed_slots(self):
        arena = A.Arena(self.golden("torn"))
        self.assertIsNone(arena.find(10, 3))  # its header is torn
        self.assertEqual(arena.find(20, 3)[0], 1)
        self.assertEqual(arena.sealed_steps(), [20, 30])

    def test_find_takes_the_slot_of_the_branch(self):
        agent = FakeAgent(self.folder)
        self.addCleanup(agent.close)
        agent.set_slot(0, A.Slot(A.SEALED, 9, 1, 50, 4, 0, 0, branch=0))
        agent.set_slot(2, A.Slot(A.SEALED, 8, 1, 50, 4, 0, 0, branch=1))
        arena = A.Arena(agent.path)
        self.assertEqual([arena.find(50, branch)[0] for branch in (0, 1)], [0, 2])
        self.assertIsNone(arena.find(50, 2))

    def test_one_client_at_a_time(self):
        path = self.golden("full")
        first = A.Arena(path)
        with self.assertRaisesRegex(A.ArenaError, "in use by another process"):
            A.Arena(path, wait=0.05)
        del first

    def test_what_is_no_arena(self):
        for name, content, text in [
            ("short", b"x" * 100, "is incomplete"),
            ("zero", bytes(65536), "torn or of another version"),
            ("cut", (GOLDEN / "full.arena").read_bytes()[: A.META + A.PAGE], "shorter than its header"),
        ]:
            path = os.path.join(self.folder, name)
            with open(path, "wb") as f:
                f.write(content)
            with self.assertRaisesRegex(A.ArenaError, text):
                A.Arena(path)
            with open("/proc/self/maps") as f:
                self.assertFalse(path in f.read(), "%s stays mapped" % name)
        with self.assertRaisesRegex(A.ArenaError, "No such file"):
            A.Arena(os.path.join(self.folder, "missing"))


if __name__ == "__main__":
    unittest.main()
