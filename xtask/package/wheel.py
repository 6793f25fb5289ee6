"""Writes a wheel with one program: wheel.py PROGRAM NAME VERSION TAG SUMMARY LICENSE LICENSE-FILE... > NAME-VERSION-TAG.whl

The format is that of the PyPA's "Binary distribution format". The times of all files are SOURCE_DATE_EPOCH, so the
same files give the same wheel.
"""

import base64
import hashlib
import io
import os
import sys
import time
import zipfile

program, name, version, tag, summary, license, *license_files = sys.argv[1:]
info = f"{name}-{version}.dist-info"
date = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]

metadata = f"""\
Metadata-Version: 2.4
Name: {name}
Version: {version}
Summary: {summary}
License-Expression: {license}
"""
wheel = f"""\
Wheel-Version: 1.0
Generator: cargo xtask package
Root-Is-Purelib: false
Tag: {tag}
"""

files = [(f"{name}-{version}.data/scripts/{os.path.basename(program)}", open(program, "rb").read(), 0o755)]
for path in license_files:
    metadata += f"License-File: {os.path.basename(path)}\n"
    files.append((f"{info}/licenses/{os.path.basename(path)}", open(path, "rb").read(), 0o644))
files += [(f"{info}/METADATA", metadata.encode(), 0o644), (f"{info}/WHEEL", wheel.encode(), 0o644)]


def record(path, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(content)}\n"


# The record is the last file, and has no digest of itself.
lines = "".join(record(path, content) for path, content, _ in files) + f"{info}/RECORD,,\n"
files.append((f"{info}/RECORD", lines.encode(), 0o644))

archive = io.BytesIO()
with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zip:
    for path, content, mode in files:
        entry = zipfile.ZipInfo(path, date)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (0o100000 | mode) << 16
        zip.writestr(entry, content)
sys.stdout.buffer.write(archive.getvalue())
