"""The embedded engine as the language service sees it."""

from __future__ import annotations

from services.language.engine.process import ProcessEngine


class TorchEngine(ProcessEngine):
    """Transformers' own modules over a paged pool, in a process of its own."""

    worker = "services.language.engine.torch.worker"
