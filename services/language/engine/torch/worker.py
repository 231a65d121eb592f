"""The engine's process (``python -m services.language.engine.torch.worker CONFIG``), started by ``TorchEngine``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import msgspec
import torch
import zmq

from services.language.engine.interface import EngineStartError
from services.language.engine.messages import (
    Config,
    Failure,
    Ready,
    Refused,
    Submit,
    decode_to_engine,
    encode,
    outcomes_of,
    request_of,
)
from services.language.engine.options import EngineOptions
from services.language.engine.spare import cpu_pool
from services.language.engine.torch.core import EngineCore
from services.language.engine.torch.guide import Guides
from services.language.engine.torch.runner import Runner
from services.language.models.facts import LanguageFacts
from services.language.output.vocabulary import Vocabulary
from shared.lifecycle import prepare_process, settle
from shared.telemetry import get_logger

_log = get_logger("engine")


def main() -> None:
    config = msgspec.json.decode(sys.argv[1], type=Config)
    options = config.options
    # The terminal's Ctrl-C goes to the whole group; when to end is for the service to say.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    prepare_process(options.log_level, options.log_format, options.threads)
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.set(zmq.SNDHWM, 0)
        socket.set(zmq.RCVHWM, 0)
        socket.connect(config.endpoint)
        try:
            runner = Runner.load(
                Path(options.folder), options.device, options.dtype, options.block_size, options.families, options.trusted
            )
            blocks = num_blocks(runner, options)
            guides = Guides(lambda: _vocabulary(options), options.threads)
            core = EngineCore(runner, blocks, options.block_size, options.max_running, options.max_batch_tokens, guides)
        except (EngineStartError, ValueError, OSError) as error:
            _log.error("engine cannot start", reason=str(error))
            socket.send(encode(Refused(str(error))))
            return
        settle()
        _log.info("engine ready", device=str(runner.device), dtype=str(runner.dtype), kv_blocks=blocks)
        socket.send(encode(Ready(runner.parameters(), core.capacity)))
        serve(core, socket, guides)


def serve(core: EngineCore, socket: zmq.Socket[bytes], guides: Guides) -> None:
    """Steps as long as there is work; between steps, takes in what arrived."""
    poller = zmq.Poller()
    poller.register(socket, zmq.POLLIN)
    poller.register(guides.wakeup, zmq.POLLIN)
    while True:
        if not core.can_step():
            # The last steps' load is out of date where cancelling ended the work.
            socket.send(encode(outcomes_of({}, core.load())))
            poller.poll()
            guides.settle()
        # Asking for the events costs a tenth of polling.
        while int(socket.get(zmq.EVENTS)) & zmq.POLLIN:
            frames = socket.recv_multipart(copy=False)
            message = decode_to_engine(frames[0].buffer)
            if isinstance(message, Submit):
                request = request_of(message, [frame.buffer for frame in frames[1:]])
                core.add(message.number, request, message.arrived)
            else:
                core.cancel(message.number)
        if not core.can_step():
            continue
        results = core.step()
        for number, result in results.items():
            if isinstance(result, Failure):
                _log.error("sequence failed", number=number, reason=result.message)
        socket.send(encode(outcomes_of(results, core.load())))


def _vocabulary(options: EngineOptions) -> Vocabulary:
    """The checkpoint's tokens, read when the first grammar comes: most engines never see one."""
    facts = LanguageFacts(Path(options.folder), options.device, options.dtype, options.families, options.trusted)
    return Vocabulary(facts.tokenizer, facts.eos_ids)


def num_blocks(runner: Runner, options: EngineOptions) -> int:
    """Blocks of the pool: as configured, or as many as all running sequences could use, as far as memory allows."""
    per_block = runner.bytes_per_token() * options.block_size
    memory = options.kv_cache_memory
    if not memory:
        context: int = runner.context_length
        useful = options.max_running * -(-context // options.block_size) * per_block
        memory = min(useful, _free_memory(runner.device))
    if memory < per_block:
        raise EngineStartError(f"a pool of {memory} bytes holds no block of {per_block} bytes; raise EPD_KV_CACHE_MEMORY")
    return memory // per_block


def _free_memory(device: torch.device) -> int:
    """Bytes that the pool may take: most of a GPU's free memory, or a share of the machine's."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * 0.85)
    return cpu_pool()


def _end_with_parent() -> None:
    """Standard input is a pipe that the service holds open; when it closes, however the service ended, so does this process."""
    while sys.stdin.buffer.read(1):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
