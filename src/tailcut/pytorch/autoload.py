"""Called at the end of `import torch`, so that init_process_group("tailcut") needs no import of ours.

It runs in every process that imports torch, so it imports nothing itself and never raises: an exception
here would break `import torch`.
"""

from __future__ import annotations

from typing import Any


def autoload() -> None:
    """Makes the name known; the engine is imported when a group is made."""
    try:
        import torch.distributed as dist

        if dist.is_available() and "tailcut" not in dist.Backend.backend_list:
            dist.Backend.register_backend("tailcut", _create, extended_api=True, devices=["cpu"])
    except Exception as error:
        import warnings

        warnings.warn(f"tailcut: the backend could not be registered: {error}", stacklevel=2)


def _create(*arguments: Any) -> Any:
    from tailcut.pytorch.backend import create

    return create(*arguments)
