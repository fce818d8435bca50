"""`parl_core.training` offers what its modules define, and imports none of them before they are used."""

import subprocess
import sys

from parl_core import training


def test_every_public_name_is_there_and_no_other() -> None:
    assert dir(training) == training.__all__ == sorted(training.__all__)
    for name in training.__all__:
        assert getattr(training, name).__name__ == name
    assert not hasattr(training, "evaluation_of_nothing")


def test_importing_it_imports_neither_numpy_nor_gymnasium() -> None:
    program = "import sys; from parl_core import training; training.Run; print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert not {"numpy", "gymnasium", "matplotlib", "tqdm", "tensorboardX"} & set(shown.split())
