"""What runs inside the workers, where this folder is on the path; nothing here may be named like a framework."""

import importlib
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
kernels = importlib.import_module("fault_kernels")
