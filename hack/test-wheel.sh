#!/usr/bin/env bash
# The wheel as a new user has it: installed by pip for a user without rights, its types checked strictly, and `holdfast run` with a killed rank.
# It downloads mypy and pyright.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
make --no-print-directory wheel PLATFORMS="linux/$(go env GOARCH)"
at=$(mktemp -d)
trap 'rm -rf "$at"' EXIT
chmod 755 "$at"
python3 -m venv "$at/venv"
wheels=(dist/holdfast-*manylinux*"$(uname -m)"*.whl)
"$at/venv/bin/pip" install --quiet mypy pyright "${wheels[0]}"
cp ckptagent/python/tests/typed_use.py "$at/"
cd "$at"
echo "wheel: mypy --strict and pyright in strict mode on all of the public surface"
venv/bin/mypy --strict --follow-imports=silent typed_use.py
venv/bin/pyright --pythonpath venv/bin/python typed_use.py
echo "wheel: without an agent it does nothing"
venv/bin/python typed_use.py
cat >train.py <<'P'
import os
import time

import holdfast

checkpoint = holdfast.attach()
steps = {"done": 0}
checkpoint.track(steps=steps)
for step in range(checkpoint.restore() + 1, 200):
    time.sleep(0.05)
    steps["done"] = step
    checkpoint.save(step)
    if step == 60 and os.environ["RANK"] == "1" and not os.path.exists("killed"):
        open("killed", "w").close()
        os.kill(os.getpid(), 9)
P
mkdir home
chmod -R a+rX "$at"
as=()
if [ "$(id -u)" = 0 ]; then
	chown 65534:65534 home
	as=(setpriv --reuid 65534 --regid 65534 --clear-groups)
fi
cd home
echo "wheel: holdfast run as user $("${as[@]}" id -u), a rank is killed"
HOME=$PWD PATH=$at/venv/bin:$PATH "${as[@]}" holdfast run --state-size=1Mi --nproc-per-node=2 ../train.py 2>&1 | tee out
grep -q "^holdfast: Recovered: generation 2 .*; from step [1-9]" out || { echo "wheel: no recovery from state in memory"; exit 1; }
cd "$root"
