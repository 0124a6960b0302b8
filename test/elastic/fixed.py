"""Runs another script, for which there must be six ranks.

    fixed.py SCRIPT ARGUMENT...
"""
import os
import runpy
import sys

world = int(os.environ["WORLD_SIZE"])
assert world == 6, "this script needs 6 ranks and has %d" % world
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
