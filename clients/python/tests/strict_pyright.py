"""Usage: strict_pyright.py FILE...

Checks programs of users with `pyright` in its strict mode.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[1] / "src"


def main() -> int:
    settings = {"typeCheckingMode": "strict", "extraPaths": [str(SOURCES)], "pythonVersion": "3.10"}
    with tempfile.TemporaryDirectory() as folder:
        # It checks what lies in the folder of its project.
        for name in sys.argv[1:]:
            shutil.copy(name, folder)
        project = Path(folder, "pyrightconfig.json")
        project.write_text(json.dumps(settings))
        command = [sys.executable, "-m", "pyright", "--project", str(project), "--pythonpath", sys.executable]
        return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
