"""The clients in other languages, which ship with the package, do the same as Python to the bit."""

import hashlib
import json
import os
import resource
import shutil
import signal
import struct
import subprocess
import time
from collections import Counter
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parl_evokit import AsyncESAgent, ESAgent, InvalidToken, LogWriter, Refusal, SamplingInfo, Tokens, mlp, read_log
from parl_evokit.guard import Comparison
from parl_evokit.log._segments import prune
from parl_evokit.noise._keys import Arm
from parl_evokit.tokens import create_secret, rotate_secret

HERE = Path(__file__).parent
VECTORS: dict[str, Any] = json.loads(files("parl_evokit.noise").joinpath("vectors_v1.json").read_text())
MANY = 100_000
NOW = 1_800_000_000
Command = list[str]


def path_of(package: str, name: str) -> Path:
    with as_file(files(package).joinpath(name)) as path:
        return path


QUANTILES = path_of("parl_evokit.noise", "quantiles_v1.i2")
SOURCE = path_of("parl_evokit", "clients/evokit_client.cpp")
WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Werror"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("clients")


def command_of(name: str, folder: Path) -> Command:
    """The command that runs the C++ client, built by this compiler, or the JavaScript client."""
    tool = shutil.which("node" if name == "javascript" else name)
    if tool is None:
        pytest.skip(f"there is no {name}")
    if name == "javascript":
        return [tool, str(HERE / "js_client_program.js"), str(SOURCE.with_suffix(".js"))]
    program = folder / name
    if not program.exists():
        # The quick suite waits for g++, and optimizing takes as long as compiling; other tests optimize with both.
        flags = ["-std=c++17", "-O0" if name == "g++" else "-O2", *WARNINGS, "-pthread", f"-I{SOURCE.parent}"]
        sources = [HERE / "cpp_client_program.cpp", SOURCE]
        subprocess.run([tool, *flags, "-o", program, *sources], check=True, timeout=240)
    return [str(program)]


@pytest.fixture(params=["g++", pytest.param("clang++", marks=pytest.mark.slow)], scope="module")
def cpp(request: pytest.FixtureRequest, folder: Path) -> Command:
    """The C++ client, by each compiler that there is."""
    return command_of(request.param, folder)


@pytest.fixture(scope="module")
def javascript(folder: Path) -> Command:
    """The JavaScript client."""
    return command_of("javascript", folder)


@pytest.fixture(params=["g++", pytest.param("clang++", marks=pytest.mark.slow), "javascript"], scope="module")
def client(request: pytest.FixtureRequest, folder: Path) -> Command:
    """Any of them."""
    return command_of(request.param, folder)


def said(client: Command, *arguments: object, given: str = "") -> list[str]:
    done = subprocess.run(
        [*client, *map(str, arguments)], input=given, capture_output=True, text=True, timeout=240, check=True
    )
    return done.stdout.splitlines()


def agent(kind: str = "BASIC_ES", **gaussian: Any) -> ESAgent:
    sampling = {"gaussian_sampling": {"std": 0.3, **gaussian}}
    return ESAgent({"solver": {"type": kind, "sampling": sampling}}, mlp([4, 20, 2]))


def sums(parameters: np.ndarray) -> list[int]:
    """The sum over the bits of each row that the clients' programs print."""
    total = np.zeros(len(parameters), np.uint32)
    for column in np.ascontiguousarray(parameters).view(np.uint32).T:
        total = total * np.uint32(31) + column
    return [int(number) for number in total]


def line(info: SamplingInfo) -> str:
    return f"{info.noise_key} {info.identity} {info.model_iter_id} {info.fingerprint}\n"


@pytest.mark.slow
@pytest.mark.parametrize("case", VECTORS["noise"], ids=lambda case: f"key {case['key']} table {case['cache_size']}")
def test_a_client_makes_the_noise_and_the_parameters_of_the_vectors(client: Command, case: dict[str, Any]) -> None:
    place = (case["seed"], case["cache_size"], case["key"], case["start"], case["count"])
    lines = [each.split() for each in said(client, "noise", QUANTILES, *place, 0.3)]
    units = [int(unit) for unit, _ in lines]
    assert units[:40] == case["units"]
    assert hashlib.sha256(struct.pack(f"<{len(units)}h", *units)).hexdigest() == case["units_sha256"]
    perturbed = b"".join(struct.pack("<I", int(bits, 16)) for _, bits in lines)
    assert hashlib.sha256(perturbed).hexdigest() == case["perturbed_sha256"]


@pytest.mark.slow
@pytest.mark.long
def test_compilers_that_fuse_products_and_sums_give_the_same_bits(tmp_path: Path) -> None:
    compilers = [found for name in ("g++", "clang++") if (found := shutil.which(name))]
    if not compilers:
        pytest.skip("there is no C++ compiler")
    case = VECTORS["noise"][0]
    place = (case["seed"], case["cache_size"], case["key"], case["start"], case["count"])
    for compiler in compilers:
        flags = [
            "-std=c++17",
            "-O3",
            "-march=native",
            "-ffp-contract=fast",
            *WARNINGS,
            "-pthread",
            f"-I{SOURCE.parent}",
        ]
        program = tmp_path / "fused"
        sources = [HERE / "cpp_client_program.cpp", SOURCE]
        subprocess.run([compiler, *flags, "-o", program, *sources], check=True, timeout=240)
        lines = [each.split() for each in said([str(program)], "noise", QUANTILES, *place, 0.3)]
        perturbed = b"".join(struct.pack("<I", int(bits, 16)) for _, bits in lines)
        assert hashlib.sha256(perturbed).hexdigest() == case["perturbed_sha256"], compiler


def test_the_header_is_one_for_c_too(tmp_path: Path) -> None:
    compiler = shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    program = tmp_path / "uses.c"
    program.write_text('#include "evokit_client.h"\nint main(void) { return evokit_error()[0]; }\n')
    subprocess.run(
        [compiler, "-std=c99", *WARNINGS, f"-I{SOURCE.parent}", "-c", "-o", tmp_path / "uses.o", program],
        check=True,
        timeout=240,
    )


@pytest.mark.parametrize("case", VECTORS["records"], ids=lambda case: case["key"])
def test_the_cpp_client_writes_the_records_of_the_vectors(cpp: Command, case: dict[str, Any]) -> None:
    numbers = (case["key"], case["model_iter_id"], case["fingerprint"], case["reward"])
    assert said(cpp, "record", *numbers) == [case["record"], case["frame"]]


def test_a_client_says_how_it_is_called_and_that_a_file_is_missing(client: Command, tmp_path: Path) -> None:
    done = subprocess.run([*client, "nonsense"], capture_output=True, timeout=240, check=False)
    assert done.returncode == 2
    command = [*client, "noise", str(tmp_path / "none"), "1", "0", "2", "0", "1", "0.3"]
    missing = subprocess.run(command, capture_output=True, timeout=240, check=False)
    assert missing.returncode != 0
    assert b"none" in missing.stderr


def infos(count: int) -> list[SamplingInfo]:
    draws = np.random.default_rng(1).integers(2, 2**62, count).tolist()
    found = []
    for number, key in enumerate(draws):
        info = SamplingInfo()
        info.fill(0 if number % 10 == 0 else key, number % 1000, 0x89ABCDEF)
        found.append(info)
    return found


@pytest.mark.slow
def test_tokens_of_the_cpp_client_are_those_of_python(cpp: Command, tmp_path: Path) -> None:
    secret = create_secret(tmp_path / "secret")
    ours = Tokens.load(secret, lifetime_s=100)
    ours._clock = lambda: float(NOW)
    every = infos(MANY)
    tokens = [ours.issue(info) for info in every]
    assert said(cpp, "issue", secret, NOW, 100, given="".join(map(line, every))) == tokens
    found = said(cpp, "redeem", secret, NOW + 100, given="\n".join(tokens) + "\n")
    assert found == [f"0 {line(info)}".rstrip() for info in every]


def test_probes_of_the_cpp_client_are_not_compared(cpp: Command, tmp_path: Path) -> None:
    secret = create_secret(tmp_path / "secret")
    guard = {"rollback": True, "control_share": 0.05, "holdout_share": 0.05, "min_control": 2}
    es = ESAgent({"solver": {"sampling": {"gaussian_sampling": {"std": 0.3}}, "guard": guard}}, mlp([4, 2]))
    clone = es.clone()
    es.update([clone.add_noise() for _ in range(40)], np.arange(40.0))
    probe = line(clone.add_noise(evaluate=True))
    tokens = said(cpp, "issue", secret, NOW, 2**31, given=probe * 200)
    probes = [Tokens.load(secret).redeem(token) for token in tokens]
    assert len({info.identity for info in probes}) == 200
    others = [info for info in clone.draw(20) if info.noise_key]
    assert es.update([*others, *probes], [*range(len(others)), *[-5.0] * 200]).control == 200
    assert es._ready("test")[0].guard.comparison == Comparison()


def test_the_cpp_client_refuses_what_python_refuses_for_the_same_reason(cpp: Command, tmp_path: Path) -> None:
    secret, other = create_secret(tmp_path / "secret"), create_secret(tmp_path / "other")
    ours, theirs = (Tokens.load(path, lifetime_s=100) for path in (secret, other))
    ours._clock = theirs._clock = lambda: float(NOW)
    good = ours.issue(infos(2)[1])
    bad = [
        theirs.issue(infos(2)[1]),
        "",
        "x" * 56,
        good + "=",
        good[:-1],
        " " + good[1:],
        "ä" + good[1:],
        good[:-1] + "/",
    ]
    bad += [good[:place] + ("A" if good[place] != "A" else "B") + good[place + 1 :] for place in range(56)]
    reasons = []
    for token in bad:
        with pytest.raises(InvalidToken) as caught:
            ours.redeem(token)
        reasons.append(caught.value.reason.value)
    found = said(cpp, "redeem", secret, NOW, given="\n".join(bad) + "\n")
    assert [int(each.split()[0]) for each in found] == reasons
    assert set(reasons) == {1, 2, 3}
    (still,) = said(cpp, "redeem", secret, NOW + 100.9, given=good + "\n")
    assert still.split()[0] == "0"
    (late,) = said(cpp, "redeem", secret, NOW + 101, given=good + "\n")
    assert late.startswith("4 ")


def test_secrets_that_others_can_read_are_refused(cpp: Command, tmp_path: Path) -> None:
    secret = create_secret(tmp_path / "secret")
    secret.chmod(0o640)
    link = tmp_path / "link"
    link.symlink_to(secret)
    for path, why in ((secret, b"read or written by others"), (link, b"symbolic link"), (tmp_path / "none", b"cannot")):
        done = subprocess.run([*cpp, "redeem", path, "1"], input=b"", capture_output=True, timeout=60, check=False)
        assert done.returncode == 1
        assert why in done.stderr


def test_the_cpp_client_finds_secrets_where_python_does(cpp: Command, tmp_path: Path) -> None:
    secret = create_secret(tmp_path / "keys" / "below" / "secret")
    token = Tokens.load(secret).issue(SamplingInfo([1, 2], 3, 4))
    variables = os.environ | {"EVOKIT_SECRET_FILE": "", "EVOKIT_SECRET": secret.read_text()}
    command = [*cpp, "redeem", "", "1"]
    done = subprocess.run(
        command, input=f"{token}\n".encode(), env=variables, capture_output=True, timeout=60, check=False
    )
    assert done.stdout.startswith(b"0 ")
    (tmp_path / "keys" / "solver.json").write_text("{}")
    done = subprocess.run([*cpp, "redeem", secret, "1"], input=b"", capture_output=True, timeout=60, check=False)
    assert done.returncode == 1
    assert b"is the directory of a model" in done.stderr


def test_the_cpp_client_takes_up_rotated_secrets_while_it_serves(cpp: Command, tmp_path: Path) -> None:
    secret = create_secret(tmp_path / "secret")
    with subprocess.Popen(
        [*cpp, "rotated", "secret"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ) as service:
        assert service.stdin is not None
        assert service.stdout is not None

        def turn() -> list[str]:
            print(file=service.stdin, flush=True)
            assert service.stdout is not None
            return service.stdout.readline().split(maxsplit=2)

        before, token = turn()
        assert before == "0"
        old = Tokens.load(secret)
        assert old.redeem(token).noise_key == 42
        rotate_secret(secret, keep=0)
        new = Tokens.load(secret)
        found, token = turn()
        assert found == "1"
        assert new.redeem(token).noise_key == 42
        assert turn()[0] == "0"
        rotate_secret(secret)
        secret.chmod(0o644)
        for _ in range(2):
            found, token, why = turn()
            assert (found, "chmod 600" in why) == ("-1", True)
            assert new.redeem(token).noise_key == 42
        secret.chmod(0o600)
        found, token = turn()
        assert found == "1"
        assert Tokens.load(secret).redeem(token).noise_key == 42
        rotate_secret(secret)
        (tmp_path / "solver.json").touch()
        assert turn()[0] == "-1"
        (tmp_path / "solver.json").unlink()
        assert turn()[0] == "1"


def test_a_cpp_service_out_of_files_takes_up_rotated_secrets_once_it_has_some(cpp: Command, tmp_path: Path) -> None:
    secret, rotated = create_secret(tmp_path / "secret"), create_secret(tmp_path / "rotated")
    token = Tokens.load(rotated).issue(infos(2)[1])
    assert said(cpp, "full", secret, rotated, token) == [f"{Refusal.UNKNOWN_SECRET.value} 0"]


def test_the_cpp_client_reads_the_secrets_anew_for_a_token_of_an_unknown_one(cpp: Command, tmp_path: Path) -> None:
    secret, other = create_secret(tmp_path / "secret"), create_secret(tmp_path / "other")
    command = [*cpp, "feedback", str(tmp_path / "log"), str(secret)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdin is not None
        assert service.stdout is not None

        def result_of(path: Path, info: SamplingInfo) -> str:
            print(Tokens.load(path).issue(info), "1.5", file=service.stdin, flush=True)
            assert service.stdout is not None
            return service.stdout.readline().strip()

        first, *others = infos(6)[1:]
        assert result_of(secret, first) == "0"
        assert result_of(other, first) == "2"
        for info in others:
            rotate_secret(secret)
            assert result_of(secret, info) == "0"
        assert result_of(other, first) == "2"
    assert len(read_log(tmp_path / "log").samples) == 5


_EACH_COMPILER = pytest.mark.parametrize("cpp", ["g++", pytest.param("clang++", marks=pytest.mark.long)], indirect=True)


@pytest.mark.slow
@_EACH_COMPILER
@pytest.mark.parametrize("gaussian", [{}, {"cached": True, "cache_size": 300}], ids=["computed", "table"])
def test_a_hundred_thousand_samples_have_the_parameters_of_python(
    cpp: Command, javascript: Command, tmp_path: Path, gaussian: dict[str, Any]
) -> None:
    es = agent(**gaussian)
    es.save(tmp_path / "model")
    sampler = es._ready("test")[0].sampler
    every = infos(MANY)
    keys = np.array([info.noise_key for info in every], np.uint64)
    wanted = sums(sampler.perturb_many(keys))
    assert said(cpp, "parameters", tmp_path / "model", QUANTILES, given="".join(f"{key}\n" for key in keys)) == [
        str(number) for number in wanted
    ]
    tokens = Tokens([bytes(32)])
    for info in every:
        info.model_iter_id, info.fingerprint = sampler.model_iter_id, sampler.fingerprint
    given = "".join(f"{tokens.issue(info)}\n" for info in every)
    found = said(javascript, "sample", tmp_path / "model", QUANTILES, "parameters", given=given)
    assert found == [str(number) for number in wanted]


def test_a_service_may_be_in_a_locale_whose_numbers_have_commas(cpp: Command, tmp_path: Path) -> None:
    tool = shutil.which("localedef")
    if tool is None:
        pytest.skip("there is no localedef, which makes such a locale")
    source = tmp_path / "source"
    source.write_text('LC_NUMERIC\ndecimal_point ","\nthousands_sep ""\ngrouping -1\nEND LC_NUMERIC\n')
    command = [tool, "-c", "-i", str(source), "-f", "UTF-8", str(tmp_path / "commas")]
    subprocess.run(command, capture_output=True, timeout=240, check=False)  # it exits with 1 after its warnings
    if not (tmp_path / "commas" / "LC_NUMERIC").exists():
        pytest.skip("there are no character maps to make a locale of")
    es = agent()
    es.save(tmp_path / "model")
    new = es.clone().draw(50)
    wanted = sums(es._ready("test")[0].sampler.perturb_many(np.array([info.noise_key for info in new])))
    done = subprocess.run(
        [*cpp, "parameters", tmp_path / "model", QUANTILES],
        input="".join(f"{info.noise_key}\n" for info in new),
        env={**os.environ, "LOCPATH": str(tmp_path), "LC_ALL": "commas"},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    assert done.stdout.splitlines() == [str(number) for number in wanted]


@pytest.mark.parametrize("kind", ["ARS", "PGPE", "SNES", "CEM", "BASIC_ES"])
def test_models_of_other_algorithms_are_perturbed_alike(
    cpp: Command, javascript: Command, tmp_path: Path, kind: str
) -> None:
    es = agent(kind, schedule={"type": "EXPONENTIAL" if kind == "BASIC_ES" else "CONSTANT", "updates": 10})
    clone = es.clone()
    for _ in range(3):
        served = [clone.add_noise() for _ in range(6)]
        es.update(served, [1.0, 5.0, 2.0, 4.0, 3.0, 0.0])
    es.save(tmp_path / "model")
    sampler = es._ready("test")[0].sampler
    new = clone.draw(50)
    wanted = [str(number) for number in sums(sampler.perturb_many(np.array([info.noise_key for info in new])))]
    keys = "".join(f"{info.noise_key}\n" for info in new)
    assert said(cpp, "parameters", tmp_path / "model", QUANTILES, given=keys) == wanted
    tokens = Tokens([bytes(32)])
    given = "".join(f"{tokens.issue(info)}\n" for info in new)
    assert said(javascript, "sample", tmp_path / "model", QUANTILES, "parameters", given=given) == wanted


def test_predictions_in_a_browser_are_those_of_python(javascript: Command, tmp_path: Path) -> None:
    es = agent()
    es.save(tmp_path / "model")
    clone, tokens = es.clone(), Tokens([bytes(32)])
    served, wanted = [], []
    for _ in range(20):
        served.append(clone.add_noise())
        wanted.append(clone.predict(np.array([0.5, -0.25, 0.125, 1.0], np.float32)))
    foreign = SamplingInfo([3, 4], 0, served[0].fingerprint ^ 1)
    given = "".join(f"{tokens.issue(info)}\n" for info in [*served, foreign]) + "no token\n"
    *found, of_another, none = said(javascript, "sample", tmp_path / "model", QUANTILES, "predict", given=given)
    outputs = np.array([[int(bits, 16) for bits in each.split()[1:]] for each in found], np.uint32).view(np.float32)
    assert np.allclose(outputs, wanted, rtol=1e-5, atol=1e-6)
    assert of_another.startswith("error the token is of model")
    assert none.startswith("error a token is 56 characters")


LIMITS = {"lower": [-1.6], "upper": [1.6], "integers": [1, 3]}  # the first weights are within, whole numbers up to 1
SHAPED = ("CMA_ES", "LM_MA_ES", "CR_FM_NES")  # their noise goes through a matrix, whose sums each language rounds


def updated(kind: str, cma: dict[str, Any], updates: int = 3, std: float = 0.3) -> ESAgent:
    """An agent of this algorithm whose samples are no longer those of the start."""
    sampling = {"gaussian_sampling": {"std": std}, "cma_sampling": cma}
    es = ESAgent({"solver": {"type": kind, "sampling": sampling}}, mlp([2, 4, 2]))
    clone, dice = es.clone(), np.random.default_rng(0)
    for _ in range(updates):
        es.update(clone.draw(16), dice.normal(size=16).tolist())
    return es


def assert_alike(cpp: Command, es: ESAgent, folder: Path, count: int) -> None:
    """The C++ client perturbs the model as Python does: to the bit, or to rounding where there is a matrix."""
    es.save(folder)
    sampler = es._ready("test")[0].sampler
    keys = np.array([0, *(info.noise_key for info in es.clone().draw(count))], np.uint64)
    command = [*cpp, "values", str(folder), str(QUANTILES)]
    given = "".join(f"{key}\n" for key in keys.tolist()).encode()
    done = subprocess.run(command, input=given, capture_output=True, timeout=240, check=True)
    found = np.frombuffer(done.stdout, np.float32).reshape(len(keys), -1)
    wanted = np.empty_like(found)
    for key, row in zip(keys.tolist(), wanted, strict=True):
        sampler.perturb(key, row)
    if es._ready("test")[0].config.solver.type.name in SHAPED:
        assert np.allclose(found, wanted, rtol=1e-5, atol=1e-6)
    else:
        assert (found.view(np.uint32) == wanted.view(np.uint32)).all()


@pytest.mark.parametrize("kind", ["CMA_ES", "SEP_CMA_ES", "LM_MA_ES", "CR_FM_NES", "GA", "CEM"])
def test_the_cpp_client_makes_the_samples_of_every_algorithm(cpp: Command, tmp_path: Path, kind: str) -> None:
    assert_alike(cpp, updated(kind, {}), tmp_path / "model", 200)


def test_the_cpp_client_keeps_to_bounds_and_whole_numbers(cpp: Command, tmp_path: Path) -> None:
    assert_alike(cpp, updated("SEP_CMA_ES", LIMITS, std=2.0), tmp_path / "both", 200)
    assert_alike(cpp, updated("SEP_CMA_ES", {"lower": [-1.4]}, std=2.0), tmp_path / "one", 200)
    assert_alike(cpp, updated("CMA_ES", LIMITS, std=2.0), tmp_path / "matrix", 200)


@pytest.mark.parametrize(
    ("kind", "cma"),
    [(kind, {}) for kind in ("CMA_ES", "SEP_CMA_ES", "LM_MA_ES", "CR_FM_NES", "GA")]
    + [("SEP_CMA_ES", LIMITS), ("SEP_CMA_ES", {"lower": [-1.4]}), ("CMA_ES", LIMITS)],
)
def test_a_browser_makes_the_samples_of_every_algorithm(
    javascript: Command, tmp_path: Path, kind: str, cma: dict[str, Any]
) -> None:
    es = updated(kind, cma, std=2.0)
    es.save(tmp_path / "model")
    sampler, tokens, infos = es._ready("test")[0].sampler, Tokens([bytes(32)]), es.clone().draw(200)
    given = "".join(f"{tokens.issue(info)}\n" for info in infos)
    rows = said(javascript, "sample", tmp_path / "model", QUANTILES, "values", given=given)
    found = np.array([[int(bits, 16) for bits in row.split()] for row in rows], np.uint32).view(np.float32)
    wanted = np.empty_like(found)
    for info, row in zip(infos, wanted, strict=True):
        sampler.perturb(info.noise_key, row)
    if kind in SHAPED:
        assert np.allclose(found, wanted, rtol=1e-5, atol=1e-6)
    else:
        assert (found.view(np.uint32) == wanted.view(np.uint32)).all()


@pytest.mark.slow
@_EACH_COMPILER
@pytest.mark.parametrize("kind", ["CMA_ES", "SEP_CMA_ES", "LM_MA_ES", "CR_FM_NES", "GA"])
def test_a_hundred_thousand_samples_of_every_algorithm_are_those_of_python(
    cpp: Command, tmp_path: Path, kind: str
) -> None:
    assert_alike(cpp, updated(kind, {}, updates=120), tmp_path / "model", MANY)


def test_a_browser_serves_both_arms_without_noise(javascript: Command, tmp_path: Path) -> None:
    guard = {"rollback": True, "control_share": 0.2, "holdout_share": 0.3}
    es = ESAgent({"solver": {"sampling": {"gaussian_sampling": {"std": 0.3}}, "guard": guard}}, mlp([4, 20, 2]))
    es.update(es.clone().draw(20), np.arange(20.0).tolist())
    es.save(tmp_path / "model")
    clone, tokens = es.clone(), Tokens([bytes(32)])
    served: list[SamplingInfo] = []
    wanted: list[str] = []
    while {info.identity >> 60 for info in served} != {0, Arm.PRESENT, Arm.TRUSTED}:
        served.append(clone.add_noise())
        wanted.append(str(sums(np.concatenate([part.ravel() for part in clone.parameters().values()])[None])[0]))
    given = "".join(f"{tokens.issue(info)}\n" for info in served)
    assert said(javascript, "sample", tmp_path / "model", QUANTILES, "parameters", given=given) == wanted


def test_the_cpp_client_serves_both_arms_without_noise(cpp: Command, tmp_path: Path) -> None:
    secret = create_secret(tmp_path / "secret")
    guard = {"rollback": True, "control_share": 0.2, "holdout_share": 0.1}
    es = ESAgent({"solver": {"sampling": {"gaussian_sampling": {"std": 0.3}}, "guard": guard}}, mlp([4, 20, 2]))
    old = es.parameters()
    es.update(es.clone().draw(20), np.arange(20.0).tolist())
    es.save(tmp_path / "model")
    said_rows = said(cpp, "serve", tmp_path / "model", QUANTILES, tmp_path / "log", secret, 5000, 1, 4, 2, 0)
    rows = [row.split() for row in said_rows]
    tokens, arms = Tokens.load(secret), Counter[str]()
    x = np.array([[(k + number % 7 - 3) / 4 for k in range(4)] for number in range(7)], np.float32)
    for key, model, token, number, *outputs in rows:
        arm = tokens.redeem(token).identity >> 60
        holdout = arm == Arm.TRUSTED
        arms["holdout" if holdout else "control" if arm == Arm.PRESENT else "noise"] += 1
        assert (key == "0") == (arm != Arm.NEITHER)
        assert model == "1"
        if key == "0" and arms.total() < 1000:
            served = mlp([4, 20, 2])
            served.bind(np.concatenate([part.ravel() for part in (old if holdout else es.parameters()).values()]))
            bits = np.array([int(each, 16) for each in outputs], np.uint32)
            assert np.allclose(bits.view(np.float32), served.predict(x[int(number) % 7]), rtol=1e-5, atol=1e-6)
    assert abs(arms["control"] / 5000 - 0.2) < 0.04
    assert abs(arms["holdout"] / 5000 - 0.1) < 0.03
    report, _ = es.update_from_log(tmp_path / "log")
    assert (report.used, report.control, report.holdout) == (arms["noise"], arms["control"], arms["holdout"])


SERVED = MANY // 4


@pytest.mark.slow
def test_a_cpp_service_samples_logs_and_takes_up_models_while_it_serves(cpp: Command, tmp_path: Path) -> None:
    secret = create_secret(tmp_path / "secret")
    config = {
        "async_es": {"model_warehouse": str(tmp_path / "models"), "max_to_keep": 20},
        "solver": {"sampling": {"gaussian_sampling": {"std": 0.3}}, "guard": {"control_share": 0.2}},
    }
    es = AsyncESAgent(mlp([4, 20, 2]), config)
    first = es.parameters()
    command = [*cpp, "serve", es.warehouse.path, QUANTILES, tmp_path / "log", secret, SERVED, 4, 4, 2, 3]
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as service:
        clone = es.clone()
        for _ in range(3):
            time.sleep(0.2)  # so that models are served; nothing depends on how many samples that is
            served = [clone.add_noise(evaluate=False) for _ in range(20)]
            es.update(served, np.arange(20.0))
            rotate_secret(secret, keep=3)
        out, err = service.communicate(timeout=240)
    assert service.returncode == 0, err
    rows = [each.split() for each in out.splitlines()]
    assert len(rows) >= MANY
    keys = [int(row[0]) for row in rows]
    assert Counter(int(row[1]) for row in rows).keys() <= {0, 1, 2, 3}
    assert int(rows[-1][1]) > 0
    perturbed = [key for key in keys if key]
    assert len(set(perturbed)) == len(perturbed)
    assert abs(keys.count(0) / len(keys) - 0.2) < 0.02

    log = read_log(tmp_path / "log")
    rewards = dict(zip(log.samples.keys.tolist(), log.samples.rewards.tolist(), strict=True))
    assert len(log.samples) == len(rows)
    assert not len(log.waiting)
    for row in rows:
        if row[0] != "0":
            assert rewards[int(row[0])] == int(row[3]) % 100 / 4
    models = dict(zip(log.samples.keys.tolist(), log.samples.models.tolist(), strict=True))
    assert all(models[int(row[0])] == int(row[1]) for row in rows if row[0] != "0")
    tokens = Tokens.load(secret)
    assert all(tokens.redeem(row[2]).noise_key == int(row[0]) for row in rows[:1000])

    x = np.array([[(k + number % 7 - 3) / 4 for k in range(4)] for number in range(7)], np.float32)
    flat = np.concatenate([part.ravel() for part in first.values()])
    model = mlp([4, 20, 2])
    for row in [row for row in rows if row[1] == "0"][:300]:
        model.bind(es._ready("test")[0].sampler.noise.perturb(flat, int(row[0]), 0.3))
        bits = np.array([int(each, 16) for each in row[4:]], np.uint32)
        assert np.allclose(bits.view(np.float32), model.predict(x[int(row[3]) % 7]), rtol=1e-5, atol=1e-6)

    report, _ = es.update_from_log(tmp_path / "log")
    assert report.used + report.control == len(rows)
    assert report.set_aside.total == 0


def test_both_halves_of_pairs_are_served_one_after_the_other(cpp: Command, tmp_path: Path) -> None:
    agent().save(tmp_path / "model")
    rows = said(cpp, "serve", tmp_path / "model", QUANTILES, tmp_path / "log", "-", 100, 1, 4, 2, 0)
    keys = [int(row.split()[0]) for row in rows]
    assert [key ^ 1 for key in keys[::2]] == keys[1::2]
    assert all(key % 2 == 0 and 2 <= key < 2**62 for key in keys[::2])


def test_rewards_for_bad_tokens_are_refused_and_counted_in_the_log(cpp: Command, tmp_path: Path) -> None:
    secret = create_secret(tmp_path / "secret")
    tokens = Tokens.load(secret)
    good, used = (tokens.issue(info) for info in infos(3)[1:])
    with LogWriter(tmp_path / "log", tokens=tokens) as log:
        log.sampled(infos(3)[1])
    changed = good[:-1] + ("A" if good[-1] != "A" else "B")
    given = f"{good} 1.5\n{changed} 1\n{used} nan\n{used} inf\n{used[:-2]} 3\n{used} 2.5\n"
    assert said(cpp, "feedback", tmp_path / "log", secret, given=given) == ["0", "3", "5", "5", "1", "0"]
    contents = read_log(tmp_path / "log")
    assert sorted(contents.samples.rewards.tolist()) == [1.5, 2.5]


def test_a_forked_child_of_a_cpp_service_does_not_write_its_parents_tally_once_more(
    cpp: Command, tmp_path: Path
) -> None:
    said(cpp, "forked", tmp_path / "log", create_secret(tmp_path / "secret"))
    assert read_log(tmp_path / "log").refused == {1: 2}


def test_a_forked_child_of_a_cpp_service_redeems_while_its_parent_reads_the_secrets(
    cpp: Command, tmp_path: Path
) -> None:
    secret, other = create_secret(tmp_path / "secret"), create_secret(tmp_path / "other")
    token = Tokens.load(other).issue(infos(2)[1])
    assert said(cpp, "forked-reader", secret, token) == [str(Refusal.UNKNOWN_SECRET.value)]


def test_a_segment_that_is_removed_while_a_cpp_service_has_it_open_is_reported(cpp: Command, tmp_path: Path) -> None:
    first, second, third = said(cpp, "removed", tmp_path / "log")
    assert (first, third) == ("0", "0")
    assert second.startswith("-1 ")
    assert "was removed while it was written to" in second
    assert read_log(tmp_path / "log").samples.rewards.tolist() == [3.0]


def test_the_cpp_client_logs_no_sample_that_readers_would_take_for_damage(cpp: Command, tmp_path: Path) -> None:
    good, bad = "42 0 3 9\n", ["1 0 3 9", f"{2**62} 0 3 9", f"0 {2**62} 3 9", f"42 0 {2**31} 9"]
    assert said(cpp, "bare", tmp_path / "log", given=good + "\n".join(bad)) == ["0", "-1", "-1", "-1", "-1"]
    contents = read_log(tmp_path / "log")
    assert (len(contents.infos), contents.damaged_bytes) == (1, 0)


def test_a_segment_that_a_cpp_service_has_open_is_not_pruned(cpp: Command, tmp_path: Path) -> None:
    secret = create_secret(tmp_path / "secret")
    first, second = (Tokens.load(secret).issue(info) for info in infos(3)[1:])
    command = [*cpp, "feedback", str(tmp_path / "log"), str(secret)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as service:
        assert service.stdin is not None
        assert service.stdout is not None
        print(first, "1.5", file=service.stdin, flush=True)
        assert service.stdout.readline() == "0\n"
        contents = read_log(tmp_path / "log")
        assert prune([tmp_path / "log"], contents.ledger).segments == []
        print(second, "2.5", file=service.stdin, flush=True)
        service.stdin.close()
        assert service.wait(60) == 0
    after = read_log(tmp_path / "log", contents.ledger)
    assert after.samples.rewards.tolist() == [2.5]
    assert len(prune([tmp_path / "log"], after.ledger).segments) == 1


@pytest.mark.parametrize("damage", ["weights", "solver.json", "other weights", "missing"])
def test_damaged_models_are_refused_by_name(cpp: Command, tmp_path: Path, damage: str) -> None:
    model = tmp_path / "model"
    agent().save(model)
    if damage == "weights":
        data = bytearray((model / "params.npz").read_bytes())
        data[len(data) // 2] ^= 1
        (model / "params.npz").write_bytes(data)
    elif damage == "solver.json":
        (model / "solver.json").write_text((model / "solver.json").read_text()[:100])
    elif damage == "other weights":
        mlp([4, 20, 2], seed=5).save(model)
    else:
        os.remove(model / "params.npz")
    command = [*cpp, "parameters", model, QUANTILES]
    done = subprocess.run(list(map(str, command)), input="", capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "params.npz" in done.stderr or "solver.json" in done.stderr


def test_a_full_disk_is_reported_and_leaves_whole_records(cpp: Command, tmp_path: Path) -> None:
    agent().save(tmp_path / "model")

    def little_memory() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4099, 4099))

    command = [*cpp, "serve", tmp_path / "model", QUANTILES, tmp_path / "log", "-", 1000, 1, 4, 2, 0]
    done = subprocess.run(
        list(map(str, command)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=little_memory,
        restore_signals=False,
    )
    assert done.returncode == 1
    assert "cannot be written to" in done.stderr
    contents = read_log(tmp_path / "log")
    assert 10 < len(contents.samples) < 1000
    assert all(report.unread == 0 and not report.damage for report in contents.segments)


@pytest.mark.slow
def test_a_cpp_sampler_outlives_its_source(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++")
    program = tmp_path / "checked"
    flags = ["-std=c++17", "-g", "-fsanitize=address", "-pthread", f"-I{SOURCE.parent}"]
    sources = [HERE / "cpp_client_program.cpp", SOURCE]
    subprocess.run(["g++", *flags, "-o", program, *sources], check=True, timeout=240)
    assert_alike([str(program)], updated("BASIC_ES", {}), tmp_path / "model", 20)


def test_a_browser_refuses_a_schedule_of_std_without_its_state(javascript: Command, tmp_path: Path) -> None:
    for kind in ("EXPONENTIAL", "CONSTANT"):
        schedule = {"type": kind} | ({"final": 0.1, "updates": 4} if kind == "EXPONENTIAL" else {})
        agent("BASIC_ES", schedule=schedule).save(tmp_path / kind)
    said(javascript, "sample", tmp_path / "CONSTANT", QUANTILES, "stateless")
    command = [*javascript, "sample", str(tmp_path / "EXPONENTIAL"), str(QUANTILES), "stateless"]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=240, check=False)
    assert "a schedule of std needs state" in done.stderr
