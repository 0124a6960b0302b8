"""Writes known lines to both streams at the requested speed; imports nothing that takes time."""

import os
import sys
import time

rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
lines, pause = int(sys.argv[1]), float(sys.argv[2])
for i in range(lines):
    print("writer %s.%s out %d %s" % (rank, attempt, i, "apple" if i % 3 == 0 else "pear"))
    print("writer %s.%s err %d %s" % (rank, attempt, i, "plum" if i % 2 else "apple"), file=sys.stderr)
    time.sleep(pause)
sys.stdout.write("writer %s.%s one\rwriter %s.%s two\r\nwriter %s.%s caf\u00e9\n" % ((rank, attempt) * 3))
