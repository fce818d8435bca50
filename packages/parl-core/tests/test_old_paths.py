"""The stubs of old module paths say what importing those paths gives."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import parl
from parl_core._migration import REMOVED_MODULES

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


def test_old_packages_are_there_after_importing_parl_alone() -> None:
    pytest.importorskip("parl_remote")
    program = (
        "import parl\n"
        "assert not hasattr(parl.remote, 'nothing')\n"
        "assert not hasattr(parl.remote, 'master')\n"
        "import parl_remote\n"
        "assert parl.remote.exceptions.RemoteError is parl_remote.RemoteError\n"
        "assert parl.remote.client.connect is parl.connect\n"
        "try:\n"
        "    parl.remote.master\n"
        "except AttributeError as error:\n"
        "    assert 'use `xparl start`' in str(error)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], timeout=60, check=True)


def test_paths_of_remote_classes_lead_to_parl_remote() -> None:
    parl_remote = pytest.importorskip("parl_remote")
    program = (
        "import parl.remote\n"
        "from parl.remote import connect, remote_class\n"
        "from parl.remote.client import disconnect, get_global_client\n"
        "from parl.remote.remote_decorator import remote_class as decorator\n"
        "from parl.remote.exceptions import FutureGetRepeatedlyError, FutureObjectEmpty, RemoteError, ResourceError\n"
        "import parl, parl_remote\n"
        "assert remote_class is decorator is parl.remote_class is parl.remote.remote_class\n"
        "assert parl.RemoteError is RemoteError and ResourceError is parl_remote.NoResources\n"
        "assert FutureObjectEmpty is parl_remote.ResultTimeout\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], timeout=60, check=True)
    assert parl_remote.__name__ == "parl_remote"


NEED_A_BACKEND = ("parl.algorithms.", "parl.core.fluid.")


@pytest.mark.parametrize("gone", sorted(path for path in REMOVED_MODULES if not path.startswith(NEED_A_BACKEND)))
def test_modules_that_are_gone_tell_what_took_their_place(gone: str) -> None:
    if gone.startswith("parl.remote"):
        pytest.importorskip("parl_remote")
    package, _, name = gone.rpartition(".")
    for program in (f"import {gone}", f"from {package} import {name}", f"from {gone} import anything"):
        with pytest.raises(ImportError) as caught:
            exec(program, {})  # the import statement itself: it treats a missing module in its own way
        assert str(caught.value).endswith(REMOVED_MODULES[gone])
        assert caught.value.name == gone


def test_names_that_a_package_had_of_its_modules_tell_what_took_their_place() -> None:
    with pytest.raises(ImportError, match=r"no 'isnotebook' in 'parl.utils', which PARL 2.x had: see IPython"):
        from parl.utils import isnotebook  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ImportError, match=r"no 'ModelBase' in 'parl.core', which PARL 2.x had: use parl.Model"):
        from parl.core import ModelBase  # type: ignore[import-not-found]  # noqa: F401


def test_flags_of_frameworks_tell_what_took_their_place() -> None:
    with pytest.raises(
        ImportError, match=r"no '_HAS_TORCH' in 'parl.utils.utils', which PARL 2.x had: .*installed\(\)"
    ):
        from parl.utils.utils import _HAS_TORCH  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(ImportError, match=r"which PARL 2.x had: use os\.name"):
        from parl.utils import _IS_WINDOWS  # type: ignore[attr-defined]  # noqa: F401


def test_all_modules_of_the_cluster_tell_what_took_their_place() -> None:
    pytest.importorskip("parl_remote")
    for name in ("compatible_trick", "grpc_heartbeat", "remote_constants", "utils", "zmq_utils"):
        with pytest.raises(ImportError, match=rf"'parl\.remote\.{name}', which PARL 2.x had"):
            importlib.import_module(f"parl.remote.{name}")


def test_the_state_of_a_worker_tells_what_took_its_place() -> None:
    pytest.importorskip("parl_remote")
    with pytest.raises(ImportError, match=r"no 'WorkerStatus' in 'parl.remote', which PARL 2.x had: .*LoopbackCluster"):
        from parl.remote import WorkerStatus  # type: ignore[attr-defined]  # noqa: F401


def test_names_that_are_gone_tell_what_took_their_place() -> None:
    with pytest.raises(ImportError, match=r"no 'has_func' in 'parl.utils.utils', which PARL 2.x had: use callable"):
        from parl.utils.utils import has_func  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(AttributeError, match=r"module 'parl.utils.utils' has no attribute 'nothing'"):
        _ = importlib.import_module("parl.utils.utils").nothing
    with pytest.raises(AttributeError, match="torchrun"):
        _ = parl.compile  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match=r"no 'compile' in 'parl', which PARL 2.x had: .*torchrun"):
        from parl import compile  # type: ignore[attr-defined]  # noqa: F401
    with pytest.raises(AttributeError, match=r"'parl' has no attribute 'nothing'$"):
        _ = parl.nothing  # type: ignore[attr-defined]
    assert not hasattr(parl, "compile")


@pytest.mark.parametrize("name", ["parl.utils", "parl.env"])
def test_every_public_name_of_a_facade_is_there(name: str) -> None:
    facade = importlib.import_module(name)
    for one in facade.__all__:
        assert getattr(facade, one) is not None
