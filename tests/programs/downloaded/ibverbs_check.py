"""The package `ibverbs` between two processes: WRITE, READ, SEND and atomics over a reliable connection; every byte is compared."""

import ctypes
import multiprocessing
import random

import ibverbs as ib

SIZE, ROUNDS = 64 << 10, 500
COUNTER = SIZE
ACCESS = (
    ib.AccessFlags.LOCAL_WRITE
    | ib.AccessFlags.REMOTE_WRITE
    | ib.AccessFlags.REMOTE_READ
    | ib.AccessFlags.REMOTE_ATOMIC
)


class End:
    """A connected queue pair, and a registered memory of which the peer knows the address and the key."""

    def __init__(self, peer):
        self.context = ib.get_device_list()[0].open()
        self.pd = self.context.alloc_pd()
        self.cq = self.context.create_cq(64)
        self.memory = (ctypes.c_uint8 * (SIZE + 16))()
        self.mr = self.pd.reg_mr(ctypes.addressof(self.memory), len(self.memory), ACCESS)
        self.qp = self.pd.create_qp(ib.QPInitAttr(send_cq=self.cq, recv_cq=self.cq, qp_type=ib.QPType.RC))
        gid = self.context.query_gid(1, 0)
        info = ib.local_qp_info(self.qp, self.context.query_port(1), gid, port=1, psn=0)
        peer.send((info.to_bytes(), ctypes.addressof(self.memory), self.mr.rkey))
        remote, self.remote, self.rkey = peer.recv()
        ib.connect_rc(self.qp, ib.QPInfo.from_bytes(remote), port=1, sgid_index=0, access=ACCESS)

    def wait(self):
        while not (completions := self.cq.poll(16)):
            pass
        for completion in completions:
            completion.raise_for_status()

    def execute(self, opcode, length, offset=0, **more):
        self.qp.post_send(
            ib.SendWR(
                wr_id=1,
                sg_list=[ib.SGE(self.mr, length)],
                opcode=opcode,
                send_flags=ib.SendFlags.SIGNALED,
                remote_addr=self.remote + offset,
                rkey=self.rkey,
                **more,
            )
        )
        self.wait()


def serve(peer):
    end = End(peer)
    end.qp.post_recv(ib.RecvWR(wr_id=2, sg_list=[ib.SGE(end.mr, SIZE)]))
    peer.send("receives")
    end.wait()
    peer.send(bytes(end.memory[:SIZE]))
    peer.recv()
    peer.send(int.from_bytes(bytes(end.memory[COUNTER : COUNTER + 8]), "little"))


def main():
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    process.start()
    end = End(here)
    here.recv()
    draw = random.Random(1)
    for count in range(ROUNDS):
        length = draw.randrange(1, SIZE + 1)
        data = draw.randbytes(length)
        end.memory[:length] = data
        end.execute(ib.WROpcode.RDMA_WRITE, length)
        end.memory[:length] = bytes(length)
        end.execute(ib.WROpcode.RDMA_READ, length)
        assert bytes(end.memory[:length]) == data, "other data than were written"
        end.execute(ib.WROpcode.ATOMIC_FETCH_AND_ADD, 8, COUNTER, compare_add=1)
        assert int.from_bytes(bytes(end.memory[:8]), "little") == count, "an addition was lost or executed twice"
    data = draw.randbytes(SIZE)
    end.memory[:SIZE] = data
    end.execute(ib.WROpcode.SEND, SIZE)
    assert here.recv() == data, "another message than was sent"
    here.send("end")
    assert here.recv() == ROUNDS
    process.join()
    print(f"{ROUNDS} writes, reads and additions: every value as expected")


if __name__ == "__main__":
    main()
