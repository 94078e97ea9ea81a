"""An interpreter that stands for another one, with other packages."""

import sys
from pathlib import Path


def fake_python(path: Path, code: str) -> Path:
    """An executable file that runs this code, whatever it is given to run."""
    path.write_text(f"#!{sys.executable}\n{code}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def python_with_folder(path: Path, folder: Path) -> Path:
    """This interpreter with the packages of one more folder."""
    code = (
        f"import os, sys\nos.environ['PYTHONPATH'] = {str(folder)!r} + ':' + os.environ.get('PYTHONPATH', '')\n"
        f"os.execv({sys.executable!r}, [{sys.executable!r}, *sys.argv[1:]])"
    )
    return fake_python(path, code)
