"""Names the machine for the head of the table."""
import datetime
import os
import pathlib
import re

# As the kernel names them, and as people do.
FEATURES = {"avx2": "AVX2", "avx512f": "AVX-512", "avx512_bf16": "AVX-512 BF16",
            "avx512_vnni": "AVX-512 VNNI", "amx_bf16": "AMX bf16", "amx_int8": "AMX int8"}


def describe(cpuinfo, cores, today):
    """One line from the text of /proc/cpuinfo."""
    model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    flags_line = re.search(r"^flags\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    flags = set(flags_line.group(1).split()) if flags_line else set()
    with_ = [name for flag, name in FEATURES.items() if flag in flags]
    if "amx_tile" not in flags:
        with_.append("no AMX")
    return (f"{model.group(1).strip() if model else 'unknown processor'}, "
            f"{cores} core{'s' if cores != 1 else ''}, {', '.join(with_)}; {today}")


def this_machine():
    return describe(pathlib.Path("/proc/cpuinfo").read_text(), len(os.sched_getaffinity(0)),
                    datetime.date.today().isoformat())
