"""A seed that is set before PyTorch is imported counts all the same."""

import subprocess
import sys

PROGRAM = """
import parl
from parl.training import seed_everything

seed_everything(7)

import sys
assert "torch" not in sys.modules

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


def test_seed_everything_before_the_first_use_of_the_backend_decides_the_first_weights() -> None:
    first, second = (
        subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first == second != ""
