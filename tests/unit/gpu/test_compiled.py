"""The GPU kernel compiled ahead of time for two GPUs: without one, what their machine code holds is
known all the same.

Counts of instructions bound the time from below. Gradients of 256 losses a unit: so many for each
step of a block, and so many around it, take less time than reading the losses does on an H200 (4.3
TB/s, 132 multiprocessors, a warp's instruction each quarter of a cycle; an H100 reads 3.0), for up
to 64 dimensions; half as fast as reading suffices for 128. The real speed only a GPU can tell
(docs/measured.md).
"""

import pathlib
import re
import subprocess

import pytest

from dpbo.gibo.gradient_kernel import LAUNCHES

LABEL = re.compile(r"^\s*(\.L_x_\w+):")
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9_.]+)(.*)")
FLOATING = re.compile(r"H?G?MMA|[FD](ADD|MUL|FMA)|F2F|MUFU\.(RCP|RSQ)64H")
TYPES = {
    "places": "*i64",
    "W": "*bf16",
    "total": "*i64",
    "numbers": "*fp64",
    "sizes": "*i64",
    "columns": "i32",
    "steps": "i32",
}
CLOCK, READ, MULTIPROCESSORS, UNITS, POINTS = 1.83e9, 4.3e12, 132, 4_000_000, 256
# least share of reading's own speed, as far as issuing instructions goes
ROOF = {16: 0.85, 32: 0.85, 64: 0.85, 128: 0.4, 256: 0.2}


def machine_code(capability, width, *, ragged, folder, slab=True):
    """(registers, instructions, loops as (first, last)) of the kernel, as `one_pass_sum` launches
    it.
    """
    triton = pytest.importorskip("triton")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from dpbo.gibo.gradient_triton import gradient_sum

    launch = LAUNCHES[width]
    constants = {
        "RAGGED": ragged,
        "ROWS": launch.rows,
        "DEPTH": launch.depth,
        "WIDTH": width,
        "TOGETHER": launch.together,
        "FACTOR": triton.language.bfloat16,
        "SLAB": slab,
    }
    names = gradient_sum.arg_names
    signature = {name: TYPES.get(name, "constexpr") for name in names}
    aligned = {
        (i,): [["tt.divisibility", 16]]
        for i, name in enumerate(names)
        if signature[name].startswith("*")
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=gradient_sum, signature=signature, constexprs=values, attrs=aligned)
    target = GPUTarget("cuda", capability, 32)
    options = {
        "num_warps": launch.warps,
        "num_stages": launch.stages,
        "enable_fp_fusion": False,
    }
    found = triton.compile(source, target=target, options=options)
    (file := folder / "kernel.cubin").write_bytes(found.asm["cubin"])
    tools = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin"
    usage = subprocess.run(
        [tools / "cuobjdump", "-res-usage", file], capture_output=True, text=True, check=True
    ).stdout
    text = subprocess.run(
        [tools / "nvdisasm", "-c", file], capture_output=True, text=True, check=True
    ).stdout
    labels, instructions, loops = dict[str, int](), list[str](), list[tuple[int, int]]()
    for line in text.splitlines():
        if label := LABEL.match(line):
            labels[label[1]] = len(instructions)
        elif instruction := INSTRUCTION.match(line):
            to = re.search(r"\.L_x_\w+", instruction[2])
            if (
                instruction[1].startswith("BRA")
                and to
                and labels.get(to[0], len(instructions)) < len(instructions)
            ):
                loops.append((labels[to[0]], len(instructions)))
            instructions.append(instruction[1])
    (registers,) = re.findall(r"REG:(\d+)", usage)
    return int(registers), instructions, loops


def product_loop(instructions, loops):
    """The innermost loop with tensor-core products, where the time goes."""
    products = [
        loop for loop in loops if any("MMA" in name for name in instructions[loop[0] : loop[1] + 1])
    ]
    return min(products, key=lambda loop: loop[1] - loop[0])


def share_of_reading(width, instructions, loops):
    """Time to read over time to issue the instructions of the loop with tensor-core products and of
    the one around it.
    """
    launch = LAUNCHES[width]
    inner = product_loop(instructions, loops)
    around = min(
        (loop for loop in loops if loop[0] < inner[0] and loop[1] > inner[1]),
        key=lambda loop: loop[1] - loop[0],
    )
    steps, once = inner[1] - inner[0] + 1, around[1] - around[0] - (inner[1] - inner[0])
    cycles = UNITS / launch.rows * launch.warps * (POINTS / launch.depth * steps + once) / 4
    return 4.0 * UNITS * POINTS / READ / (cycles / MULTIPROCESSORS / CLOCK)


def spilled(instructions):
    return sum(name.startswith(("LDL", "STL")) for name in instructions)


@pytest.mark.deep
def test_no_width_spills_and_instructions_leave_time_to_read(tmp_path):
    for width, least in ROOF.items():
        registers, instructions, loops = machine_code(90, width, ragged=False, folder=tmp_path)
        assert (spilled(instructions), registers <= 255) == (0, True), (width, registers)
        assert share_of_reading(width, instructions, loops) >= least, width


@pytest.mark.deep
def test_nor_do_the_last_blocks_and_losses_at_places_of_their_own(tmp_path):
    """And a ragged block's floating-point instructions are those of a whole one: a unit's bits do
    not tell which it is in.
    """
    for width in LAUNCHES:
        # compiled for an A100 some 2,000 instructions hold a few, none in the loop of products
        for capability, most in ((90, 0), (80, 12)):
            codes = []
            for how in ({"ragged": False}, {"ragged": True}, {"ragged": False, "slab": False}):
                _, code, loops = machine_code(capability, width, folder=tmp_path, **how)
                first, last = product_loop(code, loops)
                assert spilled(code[first : last + 1]) == 0, (width, capability)
                assert spilled(code) <= most, (width, capability)
                codes.append(code)
            whole, ragged, _ = codes
            floating = [
                sorted(name for name in code if FLOATING.match(name)) for code in (whole, ragged)
            ]
            assert floating[0] == floating[1], (width, capability)
            products = [[name for name in code if "MMA" in name] for code in (whole, ragged)]
            assert products[0] == products[1] != [], (width, capability)
