"""The script that a framework's interpreter runs: `python launch.py OPTIONS SCRIPT_OR_MODEL ARGUMENTS...`.

OPTIONS is JSON, see `parity.capture.script.run`. Only `parity` is found in its folder: the packages beside it, of the
interpreter that parity is installed in, are not imported.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    """Run the script, or the model, as its own program."""
    options, script = json.loads(sys.argv[1]), sys.argv[2]
    sys.path[0] = str(Path(__file__).resolve().parents[2])
    import parity

    assert parity  # noqa: S101 - imported to be found
    sys.path[0] = str(Path(script).resolve().parent)
    from parity.capture.script import run

    sys.argv[:] = sys.argv[2:]
    sys.exit(run(script, **options))


if __name__ == "__main__":
    main()
