"""Records the signals that it receives, and ends after the first: signals.py FOLDER: rank R writes FOLDER/signals-R."""

import os
import signal
import sys
import time

log = open(os.path.join(sys.argv[1], "signals-" + os.environ["RANK"]), "w", buffering=1)
told = []


def write(number, frame):
    told.append(number)
    log.write(signal.Signals(number).name + "\n")


for number in signal.SIGTERM, signal.SIGINT:
    signal.signal(number, write)
log.write("ready\n")
while not told:
    time.sleep(0.02)
time.sleep(0.5)  # for a second one
log.write("ends\n")
