"""Mooncake's Transfer Engine between two processes: random writes, each read back, and a digest of the target's memory at the end."""

import hashlib
import multiprocessing
import os
import random
import sys

from mooncake.engine import TransferEngine

SIZE, BLOCK, ROUNDS = 1 << 20, 64 << 10, 300


def engine():
    engine = TransferEngine()
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "rdma", "") == 0
    if "mitra0" not in str(engine.get_local_topology()):
        sys.exit("Mooncake finds no RDMA device, and uses TCP")
    return engine


def lend(peer):
    """Lends memory until the peer has finished."""
    lender = engine()
    address = lender.allocate_managed_buffer(SIZE)
    lender.write_bytes_to_buffer(address, bytes(SIZE), SIZE)
    peer.send((f"127.0.0.1:{lender.get_rpc_port()}", address))
    peer.recv()
    peer.send(hashlib.sha256(lender.read_bytes_from_buffer(address, SIZE)).hexdigest())
    os._exit(0)


def main():
    here, there = multiprocessing.Pipe()
    multiprocessing.get_context("spawn").Process(target=lend, args=(there,), daemon=True).start()
    borrower = engine()
    lender, base = here.recv()
    written, read = borrower.allocate_managed_buffer(BLOCK), borrower.allocate_managed_buffer(BLOCK)
    draw, expected = random.Random(1), bytearray(SIZE)
    for _ in range(ROUNDS):
        length = draw.randrange(1, BLOCK + 1)
        offset = draw.randrange(SIZE - length + 1)
        data = expected[offset : offset + length] = draw.randbytes(length)
        borrower.write_bytes_to_buffer(written, data, length)
        assert borrower.transfer_sync_write(lender, written, base + offset, length) == 0, "a write fails"
        assert borrower.transfer_sync_read(lender, read, base + offset, length) == 0, "a read fails"
        assert borrower.read_bytes_from_buffer(read, length) == data, "other data than were written"
    here.send("finished")
    expected, found = hashlib.sha256(expected).hexdigest(), here.recv()
    print(f"{ROUNDS} blocks; the memory has {found}, expected {expected}", flush=True)
    os._exit(expected != found)


if __name__ == "__main__":
    main()
