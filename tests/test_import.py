"""`import offline_judge` is light."""

from __future__ import annotations

import subprocess
import sys

REPORT = """
import sys
before = set(sys.modules)
import time
started = time.perf_counter()
import offline_judge
seconds = time.perf_counter() - started
ours = {*sys.stdlib_module_names, "offline_judge"}
others = {name for name in set(sys.modules) - before if name.split(".")[0] not in ours}
print(len(others), seconds, " ".join(sorted({name.split(".")[0] for name in others})))
"""


def test_import_loads_no_heavy_module():
    output = subprocess.run([sys.executable, "-c", REPORT], capture_output=True, text=True, check=True).stdout
    n_modules, seconds, names = output.split(maxsplit=2) if len(output.split()) > 2 else (*output.split(), "")
    assert int(n_modules) < 60, names
    assert not {"torch", "transformers", "vllm", "sentence_transformers", "pandas", "numpy"} & set(
        names.split()
    )
    # Not a benchmark: with torch it would be seconds, without it is a few hundredths of one.
    assert float(seconds) < 1.5
