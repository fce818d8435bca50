"""Digests of noise and updates with several versions of numpy, which must all be equal.

    python benchmarks/evolution/digests.py                                     numpy 1.26 to the newest, this Python
    python benchmarks/evolution/digests.py --numpy 1.26.4 2.4.6 --python python3.12 python3.13

Makes a fresh virtual environment for each pair in a temporary folder, installs numpy, and runs this file there with
--probe and this repository's parl-core and parl-evokit: with the processor's extensions on and off, and with one thread
and two. Prints a table in Markdown; exit 1 when two digests differ.
"""

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERSIONS = ["1.26.4", "2.0.2", "2.1.3", "2.2.6", "2.3.5", "2.4.6"]
# The instruction sets that numpy selects by processor; the plain loops must give the same bits.
PLAIN = "AVX2 FMA3 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
VARIANTS = {
    "as it is, 2 threads": {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "2"},
    "1 thread": {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    "no AVX2, AVX-512, FMA": {"NPY_DISABLE_CPU_FEATURES": PLAIN, "OPENBLAS_CORETYPE": "Nehalem"},
}


def probe() -> dict[str, str]:
    """Print digests of noise and of parameters after updates, for each algorithm whose bits are specified."""
    import numpy as np

    from parl_evokit import ES, GA, PGPE, SNES, GaussianNoise, NoiseSpec, SepCMAES
    from parl_evokit.strategy import Strategy

    def digest(array: np.ndarray) -> str:
        return hashlib.sha256(array.tobytes()).hexdigest()[:16]

    found = {"python": platform.python_version(), "numpy": np.__version__}
    for name, spec in (("computed", NoiseSpec(1024)), ("table", NoiseSpec(1024, cached=True))):
        noise = GaussianNoise(spec)
        zeros = np.zeros(200_001, np.float32)
        found[f"noise {name}"] = digest(np.concatenate([noise.perturb(zeros, key, 0.3) for key in (2, 3, 2**61 + 4)]))
    kinds: list[tuple[str, type[Strategy], dict[str, object]]] = [
        ("ES, Adam", ES, {"optimizer": {"type": "ADAM", "base_lr": 0.05}}),
        ("ES, momentum, normalised", ES, {"optimizer": {"type": "MOMENTUM"}, "update": {"shaping": "NORMALIZED"}}),
        ("PGPE", PGPE, {"optimizer": {"type": "ADAM", "base_lr": 0.05}}),
        ("SNES", SNES, {}),
        ("GA", GA, {}),
        ("SEP_CMA_ES", SepCMAES, {}),
    ]
    for name, kind, solver in kinds:
        size = 20_001
        start = (np.arange(size) % 1001 - 500).astype(np.float32) / np.float32(512)
        sampling = {"gaussian_sampling": {"std": 0.3, "seed": 1024, "cached": True}}
        strategy = kind(start, {"keys": "COUNTER", "solver": {**solver, "sampling": sampling}})
        for update in range(8):
            infos = strategy.ask(40)
            strategy.tell(infos, [((40 * update + i) * 7919 % 257 - 128) / 64.0 for i in range(40)])
        found[name] = digest(strategy.mean)
    return found


def in_fresh_environment(python: str, numpy: str, folder: Path) -> list[tuple[str, dict[str, str]]]:
    """Return digests by variant; empty if this version of numpy cannot be installed."""
    place = Path(tempfile.mkdtemp(dir=folder))  # of its own, because interpreters may have the same name
    subprocess.run([python, "-m", "venv", place], check=True)
    interpreter = place / "bin" / "python"
    install = [str(interpreter), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary=numpy"]
    done = subprocess.run([*install, f"numpy=={numpy}"], capture_output=True, text=True)
    if done.returncode:
        sys.stderr.write(f"numpy {numpy} cannot be installed for {python}\n")
        return []
    paths = os.pathsep.join(str(ROOT / "packages" / package / "src") for package in ("parl-core", "parl-evokit"))
    results = []
    for variant, settings in VARIANTS.items():
        output = subprocess.check_output(
            [interpreter, "-W", "ignore", __file__, "--probe"], env={**os.environ, **settings, "PYTHONPATH": paths}
        )
        results.append((variant, json.loads(output)))
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description="Digests of noise and updates over versions of numpy and Python.")
    parser.add_argument("--numpy", nargs="+", default=VERSIONS, help="versions to install")
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="interpreters")
    parser.add_argument("--probe", action="store_true", help="print the digests of this interpreter as JSON")
    arguments = parser.parse_args()
    if arguments.probe:
        print(json.dumps(probe()))
        return 0
    rows: list[tuple[str, str, str, dict[str, str]]] = []
    with tempfile.TemporaryDirectory() as folder:
        for python in arguments.python:
            for numpy in arguments.numpy:
                for variant, digests in in_fresh_environment(python, numpy, Path(folder)):
                    rows.append((digests.pop("python"), digests.pop("numpy"), variant, digests))
    if not rows:
        return 2
    whats = list(rows[0][3])
    print(f"| Python | numpy | variant | {' | '.join(whats)} |\n| --- | --- | --- |{' --- |' * len(whats)}")
    for version, numpy, variant, digests in rows:
        print(f"| {version} | {numpy} | {variant} | {' | '.join(digests[what][:8] for what in whats)} |")
    different = [what for what in whats if len({digests[what] for *_, digests in rows}) > 1]
    outcome = f"different: {different}" if different else "all equal"
    print(f"\n{len(rows)} set-ups, {len(whats)} digests each: {outcome}")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
