"""The names under which programs of PARL 2.x import tools, and what importing them costs."""

import importlib
import subprocess
import sys
from argparse import Namespace
from types import ModuleType

import pytest

import parl.env
import parl.utils

NAMES = {
    "parl.utils": "logger summary ReplayMemory CSVLogger machine_info action_mapping calc_gae check_model_method "
    "GlobalConfig global_config get_free_tcp_port get_port_from_range is_port_available is_xpu_available rl_utils "
    "scheduler replay_memory csv_logger utils",
    "parl.utils.logger": "info warn warning error critical debug exception setLevel set_level set_dir get_dir "
    "auto_set_dir INFO DEBUG WARNING ERROR CRITICAL",
    "parl.utils.summary": "add_scalar add_histogram add_text add_image add_hparams flush close",
    "parl.utils.tensorboard": "add_scalar add_histogram flush close",
    "parl.utils.csv_logger": "CSVLogger",
    "parl.utils.replay_memory": "ReplayMemory",
    "parl.utils.scheduler": "PiecewiseScheduler LinearDecayScheduler",
    "parl.utils.rl_utils": "calc_discount_sum_rewards calc_gae action_mapping",
    "parl.utils.np_utils": "np_softmax np_cross_entropy",
    "parl.utils.time_stat": "TimeStat",
    "parl.utils.window_stat": "WindowStat",
    "parl.utils.globvars": "global_config GlobalConfig",
    "parl.utils.machine_info": "get_ip_address get_gpu_count is_gpu_available is_xpu_available get_free_tcp_port "
    "is_port_available get_port_from_range",
    "parl.env": "VectorEnv ActionMappingWrapper CompatWrapper is_gym_version_ge V_GYM_CHANGED V_NPRANDOM_CHANGED",
    "parl.env.vector_env": "VectorEnv",
    "parl.env.continuous_wrappers": "ActionMappingWrapper",
    "parl.env.compat_wrappers": "CompatWrapper is_gym_version_ge V_GYM_CHANGED V_NPRANDOM_CHANGED",
    "parl.env.atari_wrappers": "wrap_deepmind MonitorEnv NoopResetEnv MaxAndSkipEnv EpisodicLifeEnv FireResetEnv "
    "WarpFrame ClipRewardEnv FrameStack TestEnv get_wrapper_by_cls",
    "parl.env.mujoco_wrappers": "wrap_rms get_ob_rms TimeLimitMaskEnv MonitorEnv VecNormalizeEnv RunningMeanStd",
}


@pytest.mark.parametrize("module", NAMES)
def test_names_of_parl_2_can_be_imported_from_where_they_were(module: str) -> None:
    imported = importlib.import_module(module)
    missing = [name for name in NAMES[module].split() if not hasattr(imported, name)]
    assert missing == []


@pytest.mark.parametrize("package", [parl.utils, parl.env])
def test_every_listed_name_exists_and_others_are_attribute_errors(package: ModuleType) -> None:
    assert sorted(package.__all__) == package.__all__ == dir(package)
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing


def test_a_module_and_the_name_in_its_package_are_the_same() -> None:
    import parl.utils.logger
    from parl.utils import logger

    assert parl.utils.logger is logger
    assert parl.utils.logger.get_dir() == logger.get_dir()


def in_a_fresh_process(code: str) -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=240, check=True)


def test_the_tools_import_neither_gymnasium_nor_tensorboardx_nor_a_framework() -> None:
    in_a_fresh_process(
        "import sys\n"
        "from parl.utils import logger, summary, ReplayMemory, CSVLogger, calc_gae, machine_info\n"
        "heavy = {'gymnasium', 'tensorboardX', 'torch', 'paddle', 'zmq', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )


def test_without_gymnasium_environments_name_the_install_line_and_tools_work() -> None:
    in_a_fresh_process(
        "import sys\n"
        "sys.modules['gymnasium'] = None\n"
        "import importlib.util\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'gymnasium' else real(name, *more)\n"
        "from parl.utils import ReplayMemory, calc_discount_norm_reward\n"
        "try:\n"
        "    from parl.env.atari_wrappers import wrap_deepmind\n"
        "except ImportError as error:\n"
        "    assert 'pip install \"parl-core[train]\"' in str(error), error\n"
        "else:\n"
        "    raise AssertionError('imported')\n"
    )


def test_the_global_config_takes_over_arguments(caplog: pytest.LogCaptureFixture) -> None:
    from parl.utils.globvars import GlobalConfig

    config = GlobalConfig(batch_size=18, gamma=0.9)
    config.load_argument(Namespace(batch_size=32, gamma=0.9, seed=1))
    assert (config.batch_size, config.gamma, config.seed) == (32, 0.9, 1)
    assert [record.getMessage() for record in caplog.records] == ["setting batch_size changes from 18 to 32"]
    with pytest.raises(TypeError, match="parse_args"):
        config.load_argument({"seed": 1})  # type: ignore[arg-type]  # wrong on purpose
