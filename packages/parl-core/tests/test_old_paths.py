"""The stubs of old module paths say what importing those paths gives."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import parl

FOLDER = Path(parl.__file__).parent
STUBS = sorted(FOLDER.rglob("*.pyi"))


def path_of(stub: Path) -> str:
    return ".".join(("parl", *stub.relative_to(FOLDER).with_suffix("").parts))


@pytest.mark.parametrize("stub", STUBS, ids=path_of)
def test_the_names_of_a_stub_are_those_of_the_module_and_from_where_it_says(stub: Path) -> None:
    module = importlib.import_module(path_of(stub))
    imports = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)]
    named = {alias.name: node.module for node in imports for alias in node.names}
    assert named
    for name, home in named.items():
        assert getattr(module, name) is getattr(importlib.import_module(str(home)), name)


def test_every_form_of_import_finds_an_old_path() -> None:
    program = (
        "import parl.utils.logger, parl.utils.rl_utils as rl_utils\n"
        "from parl.utils import logger\n"
        "from parl.utils.logger import info\n"
        "from parl.env.atari_wrappers import MonitorEnv, wrap_deepmind\n"
        "import parl_core.logger\n"
        "assert parl.utils.logger is logger is parl_core.logger and logger.info is info\n"
        "assert parl_core.logger.__spec__.name == 'parl_core.logger'\n"
        "assert rl_utils.calc_gae and rl_utils.action_mapping\n"
        "try:\n"
        "    import parl.utils.nothing\n"
        "except ModuleNotFoundError as error:\n"
        "    assert error.name == 'parl.utils.nothing'\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], timeout=60, check=True)
