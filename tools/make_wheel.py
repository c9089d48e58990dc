#!/usr/bin/env python3
"""make_wheel.py BUILD VERSION DIR - a wheel of the program in BUILD, written to DIR.

The wheel installs what `make install` installs below the environment's prefix: its file
names are those of tools/install.sh.  The platform tag names the C library that the program
was linked with."""
import base64
import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
import zipfile

NAME = "miles_c"
METADATA = """Metadata-Version: 2.1
Name: miles-c
Version: %s
Summary: Reinforcement-learning post-training of language models, in C
License: %s
Requires-Python: >=3.8
"""


def glibc_version(program):
    """The newest version of the C library that the program's symbols need, as (2, 36)."""
    symbols = subprocess.run(["objdump", "-T", program], capture_output=True, text=True, check=True).stdout
    found = {tuple(map(int, v.split("."))) for v in re.findall(r"GLIBC_([0-9.]+)", symbols)}
    return max(found)


def license_name():
    return open("LICENSE", encoding="utf-8").readline().strip()


def wheel_path(name):
    """Where a file of the installation is in the wheel: pip puts the members of data/data
    below the prefix, those of data/scripts into bin, Python packages into site-packages."""
    data = "%s-%s.data" % (NAME, VERSION)
    if name.startswith("bin/"):
        return "%s/scripts/%s" % (data, name[4:])
    if name.startswith("share/miles/python/"):
        return name[len("share/miles/python/"):]
    return "%s/data/%s" % (data, name)


def digest(content):
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


class Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.record = []

    def add(self, name, content, mode=0o644):
        info = zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0))  # the same bytes for the same files
        info.external_attr = (0o100000 | mode) << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(info, content)
        self.record.append("%s,%s,%d" % (name, digest(content), len(content)))

    def close(self, info):
        self.record.append(info + "/RECORD,,")
        self.zip.writestr(zipfile.ZipInfo(info + "/RECORD", (2020, 1, 1, 0, 0, 0)), "\n".join(self.record) + "\n")
        self.zip.close()


def main(build, out):
    tag = "py3-none-manylinux_%d_%d_%s" % (*glibc_version(build + "/miles"), platform.machine())
    info = "%s-%s.dist-info" % (NAME, VERSION)
    path = "%s/%s-%s-%s.whl" % (out, NAME, VERSION, tag)
    wheel = Wheel(path)
    with tempfile.TemporaryDirectory() as root:
        subprocess.run(["tools/install.sh", build, "", root], check=True, env={**os.environ, "STRIP": "1"})
        for name in open(root + "/share/miles/installed-files", encoding="utf-8").read().split("\n"):
            if name:
                file = os.path.join(root, name)
                with open(file, "rb") as f:
                    wheel.add(wheel_path(name), f.read(), os.stat(file).st_mode & 0o777)
    wheel.add(info + "/METADATA", (METADATA % (VERSION, license_name())).encode())
    wheel.add(info + "/WHEEL", ("Wheel-Version: 1.0\nGenerator: miles.c\nRoot-Is-Purelib: false\nTag: %s\n" % tag).encode())
    wheel.close(info)
    print(path)


if __name__ == "__main__":
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    VERSION = sys.argv[2]
    main(sys.argv[1], sys.argv[3])
