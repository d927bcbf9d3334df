# SPDX-License-Identifier: Apache-2.0
"""The box as Python reads it is the box as the plugin's headers have it."""

import struct
from pathlib import Path

from nccl_inspector.box import layout
from nccl_inspector.model import process as model
from tests.support.c_program import run_c
from tests.support.repository import PLUGIN_DIR

RECORDS = {
    "box_header": layout.HEADER,
    "box_gpu": layout.GPU,
    "box_comm": layout.COMM,
    "box_key": layout.KEY,
    "box_op": layout.OP,
    "hist": layout.HIST,
    "box_peer": layout.PEER,
    "box_window": layout.WINDOW,
    "box_line": layout.LINE,
    "box_net": layout.NET,
    "box_net_queue": layout.NET_QUEUE,
    "box_sample": layout.SAMPLE,
    "box_sample_kind": layout.SAMPLE_KIND,
    "box_union": layout.UNION,
    "box_skew": layout.SKEW,
    "box_label": layout.LABEL,
    "box_union_window": layout.UNION_WINDOW,
}


def test_the_layout_is_the_compilers(tmp_path: Path) -> None:
    body, mine = "", []
    for name, record in RECORDS.items():
        body += f'printf("%zu ", sizeof(struct {name}));\n'
        mine.append(record.size)
        for member, offset in record.offsets.items():
            body += f'printf("%zu %zu ", offsetof(struct {name}, {member}), '
            body += f"sizeof(((struct {name} *)0)->{member}));\n"
            mine += [offset, struct.calcsize("<" + record.codes[member])]
    assert [int(word) for word in run_c(tmp_path, body)] == mine


def test_numbers_and_words_are_the_plugins(tmp_path: Path) -> None:
    body = 'printf("%d ", (int)BOX_VERSION);'
    for word in (
        *("BOX_LIVE", "BOX_FINALIZED", "BOX_EXITED", "BOX_OP_USED", "BOX_COMM_LIVE"),
        *("BOX_COMM_DESTROYED", "BOX_COMM_FOLDED", "BOX_GPUS", "BOX_DROPS"),
        *("BOX_LINE_WINDOWS", "BOX_UNION_WINDOWS"),
        *("BOX_FUNCS", "BOX_ALGOS", "BOX_PROTOS"),
    ):
        body += f'printf("%d ", (int){word});'
    body += "puts(BOX_MAGIC);"
    assert run_c(tmp_path, body) == [
        *map(str, (layout.VERSION, layout.STATE_LIVE, layout.STATE_FINALIZED, layout.STATE_EXITED)),
        *map(str, (layout.OP_USED, model.COMM_LIVE, model.COMM_DESTROYED, model.COMM_FOLDED)),
        *map(str, (layout.GPUS, len(model.DROP_REASONS), layout.LINE_WINDOWS)),
        str(layout.UNION_WINDOWS),
        *map(str, (len(model.FUNCS), len(model.ALGOS), len(model.PROTOS), layout.MAGIC.decode())),
    ]


def test_reasons_of_drops_are_the_plugins_words() -> None:
    source = (PLUGIN_DIR / "prom" / "text_of_gpu.c").read_text()
    for reason in model.DROP_REASONS:
        assert f'"{reason}"' in source
