"""A seed that is set before Paddle is imported counts all the same."""

import subprocess
import sys

import pytest

PROGRAM = """
import parl
from parl.training import seed_everything

{before}
seed_everything(7)

class Model(parl.Model):
    def __init__(self):
        super().__init__()
        self.fc = parl.layers.fc(size=2, act="softmax")

    def forward(self, obs):
        return self.fc(obs)

agent = parl.Agent(parl.algorithms.PolicyGradient(Model()))
agent.predict([1.0, 2.0])
print(agent.get_weights()["fc.weight"].tolist())
"""


NOT_IMPORTED = 'import sys; assert "paddle" not in sys.modules'


def first_weights(before: str) -> str:
    program = PROGRAM.replace("{before}", before)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


@pytest.mark.slow
def test_seed_everything_decides_the_first_weights_of_a_framework_imported_later() -> None:
    the_class_imports_it = "def make_agent() -> parl.Agent: ..."
    assert first_weights(NOT_IMPORTED) == first_weights(the_class_imports_it) != ""
