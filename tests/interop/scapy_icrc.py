"""Reads a capture with scapy and says, a JSON object a frame, what it finds in each packet's BTH, what ICRC it
computes itself, and which bytes it would send. Called by tests/interop_scapy.rs."""

import json
import sys

from scapy.all import rdpcap
from scapy.contrib.roce import AETH, BTH

for frame in rdpcap(sys.argv[1]):
    original = bytes(frame)
    bth = frame[BTH]
    after = bytes(bth.payload)
    said = {
        "time_ns": int(frame.time * 1_000_000_000),
        "opcode": bth.opcode,
        "opcode_name": bth.get_field("opcode").i2repr(bth, bth.opcode),
        "solicited": bth.solicited,
        "migreq": bth.migreq,
        "padcount": bth.padcount,
        "version": bth.version,
        "pkey": bth.pkey,
        "fecn": bth.fecn,
        "becn": bth.becn,
        "dqpn": bth.dqpn,
        "ackreq": bth.ackreq,
        "psn": bth.psn,
        "icrc": bth.icrc,
        "after_bth": after.hex(),
    }
    if AETH in frame:
        said["syndrome"], said["msn"] = frame[AETH].syndrome, frame[AETH].msn
    # Without these scapy fills in its own: ICRC, lengths, IP checksum. UDP's checksum stays, 0 over
    # IPv4.
    bth.icrc = None
    for layer, field in (("IP", "len"), ("IP", "chksum"), ("IPv6", "plen"), ("UDP", "len")):
        if layer in frame:
            delattr(frame[layer], field)
    rebuilt = bytes(frame)
    said["rebuilt_differs_at"] = [i for i in range(len(original)) if original[i : i + 1] != rebuilt[i : i + 1]]
    said["rebuilt_icrc"] = rebuilt[-4:].hex()
    print(json.dumps(said))
