"""With parl-remote and nothing else, plain parallel Python works and no framework is there or missed."""

import json
import subprocess

from fresh_environment import FreshEnvironment

PROGRAM = """
import json, sys
from importlib.util import find_spec
import parl

@parl.remote_class
class Counter:
    def __init__(self, start):
        self.value = start

    def add(self, n):
        self.value += n
        return self.value

if __name__ == "__main__":
    parl.connect()
    counter = Counter(40)
    frameworks = ["torch", "paddle", "gymnasium", "tensorboardX"]
    print(json.dumps({
        "answer": counter.add(2),
        "importable": [name for name in frameworks if find_spec(name)],
        "imported": [name for name in frameworks if name in sys.modules],
    }))
"""


def test_a_class_becomes_remote_with_parl_remote_alone(remote_only: FreshEnvironment) -> None:
    done = remote_only.script(PROGRAM)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"answer": 42, "importable": [], "imported": []}


def test_import_parl_alone_loads_neither_zmq_nor_a_framework(remote_only: FreshEnvironment) -> None:
    heavy = "('zmq', 'flask', 'cloudpickle', 'psutil', 'click', 'parl_remote', 'torch', 'paddle', 'gymnasium')"
    done = remote_only.run("-c", f"import sys, parl; print([n for n in {heavy} if n in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_a_missing_backend_is_answered_with_the_install_line(remote_only: FreshEnvironment) -> None:
    done = remote_only.run("-c", "import parl; parl.Model")
    assert "ImportError" in done.stderr or "BackendNotInstalled" in done.stderr
    assert "pip install parl-torch" in done.stderr
    assert "pip install parl-paddle" in done.stderr


def test_an_unknown_name_is_an_attribute_error(remote_only: FreshEnvironment) -> None:
    done = remote_only.run("-c", "import parl; parl.remote_clas")
    assert "AttributeError: module 'parl' has no attribute 'remote_clas'" in done.stderr


def test_xparl_is_on_the_path_and_explains_itself(remote_only: FreshEnvironment) -> None:
    done = subprocess.run([remote_only.folder / "bin" / "xparl", "--help"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert "start" in done.stdout


def test_an_old_parl_beside_this_one_is_named_with_the_way_out(remote_only: FreshEnvironment) -> None:
    old = remote_only.site_packages() / "parl-2.2.1.dist-info"
    old.mkdir()
    try:
        done = remote_only.run("-c", "import parl")
    finally:
        old.rmdir()
    assert "pip uninstall parl" in done.stderr
    assert "parl-2.2.1" in done.stderr
