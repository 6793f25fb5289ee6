"""Compares the results of MPI operations with what they must be: mpi4py, two or more ranks, up to 1 MiB."""

from array import array

from mpi4py import MPI

comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
following, previous = (rank + 1) % size, (rank - 1) % size
for step in range(200):
    length = 1 << step % 18
    mine = array("q", range(rank + step, rank + step + length))
    # A ring of messages.
    received = array("q", bytes(8 * length))
    comm.Sendrecv(mine, following, step, received, previous, step)
    assert received == array("q", range(previous + step, previous + step + length)), ("sendrecv", step)
    total = array("q", bytes(8 * length))
    comm.Allreduce(mine, total)
    assert total[-1] == sum(peer + step + length - 1 for peer in range(size)), ("allreduce", step)
    assert comm.bcast({"step": step} if rank == step % size else None, step % size) == {"step": step}
# One-sided operations.
words = array("q", [0] * (size + 1))
window = MPI.Win.Create(words, 8, comm=comm)
one, old, sent = array("q", [1]), array("q", [-1]), array("q", [rank + 1])
window.Fence()
window.Put(sent, following, rank)
window.Fence()
assert words[previous] == previous + 1, "put"
for _ in range(100):
    window.Lock(0)
    window.Fetch_and_op(one, old, 0, size, MPI.SUM)
    window.Unlock(0)
comm.Barrier()
if rank == 0:
    window.Lock(0)
    assert words[size] == 100 * size, ("fetch and add", words[size])
    window.Unlock(0)
window.Free()
print(f"rank {rank} of {size}: every value as expected, {MPI.Get_library_version().split(',')[0].split(chr(10))[0]}", flush=True)
