"""Moves data between two processes by NIXL, the transfer library of NVIDIA Dynamo, vLLM and SGLang.

    python3 -m venv nixl && nixl/bin/pip install --no-deps numpy nixl-cu12==1.5.1      # without PyTorch
    mitra run --rails 2 --fault 'rail0 link-down@5:310' -- nixl/bin/python examples/nixl.py

Each transfer writes 8 random blocks of the other process's memory, and the next one reads them back. At the end, a digest of that
memory is compared with a digest of what it must contain.
"""

import hashlib
import multiprocessing
import os
import random

import numpy
from nixl_cu12._api import nixl_agent, nixl_agent_config

BLOCK, BLOCKS = 64 << 10, 128
AT_ONCE, TRANSFERS = 8, 100


def blocks(base, numbers):
    """NIXL's descriptors of these blocks of a memory: address, length, device."""
    return [(base + BLOCK * number, BLOCK, 0) for number in numbers]


def lend(peer):
    """Lends memory until the peer has finished."""
    agent = nixl_agent("lender", nixl_agent_config())
    memory = numpy.zeros(BLOCK * BLOCKS, numpy.uint8)
    agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    peer.send((agent.get_agent_metadata(), memory.ctypes.data))
    peer.recv()
    peer.send(hashlib.sha256(memory).hexdigest())
    os._exit(0)


def main():
    here, there = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=lend, args=(there,), daemon=True).start()
    agent = nixl_agent("borrower", nixl_agent_config())
    metadata, base = here.recv()
    lender = agent.add_remote_agent(metadata)
    buffer = numpy.zeros(BLOCK * AT_ONCE, numpy.uint8)
    agent.register_memory([(buffer.ctypes.data, buffer.nbytes, 0, "")], "DRAM")
    local = agent.get_xfer_descs(blocks(buffer.ctypes.data, range(AT_ONCE)), "DRAM")

    def transfer(operation, numbers):
        remote = agent.get_xfer_descs(blocks(base, numbers), "DRAM")
        handle = agent.initialize_xfer(operation, local, remote, lender)
        state = agent.transfer(handle)
        while state == "PROC":
            state = agent.check_xfer_state(handle)
        assert state == "DONE", state
        agent.release_xfer_handle(handle)

    draw, expected = random.Random(1), numpy.zeros((BLOCKS, BLOCK), numpy.uint8)
    for _ in range(TRANSFERS):
        numbers = draw.sample(range(BLOCKS), AT_ONCE)
        data = numpy.frombuffer(draw.randbytes(buffer.nbytes), numpy.uint8)
        expected[numbers] = data.reshape(AT_ONCE, BLOCK)
        buffer[:] = data
        transfer("WRITE", numbers)
        buffer[:] = 0
        transfer("READ", numbers)
        assert (buffer == data).all(), "other data than were written"
    here.send("finished")
    expected, found = hashlib.sha256(expected).hexdigest(), here.recv()
    print(f"{TRANSFERS} transfers; the memory has {found}, expected {expected}", flush=True)
    # At a usual exit, the wheel's copy of libnl crashes, with and without Mitra.
    os._exit(expected != found)


if __name__ == "__main__":
    main()
