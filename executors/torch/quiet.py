"""Loading by `transformers` without its voice and without the network."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def quietly() -> Iterator[None]:
    """While this is open, transformers prints no progress, logs errors only, warns of nothing and asks no hub.

    As it was afterwards. Settings of the whole process: not for several threads at once.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from huggingface_hub import constants
        from transformers.utils import logging as untyped

        logging: Any = untyped
        verbosity, bars, offline = logging.get_verbosity(), logging.is_progress_bar_enabled(), constants.HF_HUB_OFFLINE
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        constants.HF_HUB_OFFLINE = True
        try:
            yield
        finally:
            constants.HF_HUB_OFFLINE = offline
            logging.set_verbosity(verbosity)
            if bars:
                logging.enable_progress_bar()
