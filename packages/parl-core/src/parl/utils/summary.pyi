"""`parl_core.summary` under the name that programs import."""

from parl_core.summary import (
    add_histogram,
    add_hparams,
    add_image,
    add_scalar,
    add_text,
    close,
    flush,
    get_dir,
)

__all__ = ["add_histogram", "add_hparams", "add_image", "add_scalar", "add_text", "close", "flush", "get_dir"]
