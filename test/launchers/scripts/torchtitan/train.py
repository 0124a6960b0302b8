"""Replaces torchtitan's module: prints its arguments."""

import os
import sys

print("writer", os.environ["RANK"], os.environ["ROLE_NAME"], sys.argv[1:], __name__)
print("writer", os.environ["RANK"], "err", file=sys.stderr)
