"""GPUs by name: memory, bandwidth and dense peak rates of their makers' data sheets.

Peak rates are without sparsity, in FLOP/s by bits of the operands; `link` is the bandwidth between GPUs of one machine
in one direction. A measured server reaches a part of each.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import UsageError

T = 1e12


@dataclass(frozen=True, slots=True)
class Gpu:
    """`memory` in bytes as the driver reports it, a little below the data sheet's, `bandwidth` and `link` in bytes/s,
    peaks in FLOP/s."""

    name: str
    memory: float
    bandwidth: float
    peak_16: float
    peak_8: float
    link: float
    source: str

    def peak(self, bits: float) -> float:
        """The peak for matrix products whose operands have so many bits; 4-bit weights are multiplied at 16."""
        return self.peak_8 if bits == 8 else self.peak_16


def _gpu(name: str, gib: float, tb_s: float, tf_16: float, tf_8: float, link_gb_s: float, source: str) -> Gpu:
    return Gpu(name, gib * 2**30, tb_s * 1e12, tf_16 * T, tf_8 * T, link_gb_s * 1e9, source)


# 8-bit peaks: FP8 where there is FP8, else INT8 is not used for it and the 16-bit peak stands.
GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("b200", 179.1, 8.0, 2250, 4500, 900, "NVIDIA DGX B200 data sheet, per GPU, dense"),
        _gpu("h200", 140.4, 4.8, 989.5, 1979, 450, "NVIDIA H200 data sheet (SXM), dense"),
        _gpu("h100", 79.6, 3.35, 989.5, 1979, 450, "NVIDIA H100 data sheet (SXM5), dense"),
        _gpu("h100-pcie", 79.6, 2.0, 756.5, 1513, 64, "NVIDIA H100 data sheet (PCIe), dense"),
        _gpu("h20", 95.6, 4.0, 148, 296, 450, "NVIDIA H20 data sheet, dense"),
        _gpu("a100-80gb", 80, 2.039, 312, 312, 300, "NVIDIA A100 data sheet (SXM4 80 GB), dense"),
        _gpu("a100-40gb", 40, 1.555, 312, 312, 300, "NVIDIA A100 data sheet (SXM4 40 GB), dense"),
        _gpu("l40s", 45.0, 0.864, 362, 733, 32, "NVIDIA L40S data sheet, dense"),
        _gpu("l4", 22.5, 0.3, 121, 242.5, 32, "NVIDIA L4 data sheet, dense"),
        _gpu("a10", 22.5, 0.6, 125, 125, 32, "NVIDIA A10 data sheet, dense"),
        _gpu("t4", 15.0, 0.32, 65, 65, 16, "NVIDIA T4 data sheet"),
        _gpu("rtx4090", 24, 1.008, 165.2, 330.3, 32, "NVIDIA Ada architecture white paper, FP32 accumulate, dense"),
        _gpu("mi300x", 191.7, 5.3, 1307.4, 2614.9, 448, "AMD Instinct MI300X data sheet, dense"),
    )
}


def gpu_named(name: str) -> Gpu:
    """Raises UsageError with the names there are."""
    key = name.strip().lower().replace(" ", "-").replace("_", "-")
    if key in GPUS:
        return GPUS[key]
    alias = {"a100": "a100-80gb", "h100-sxm": "h100", "h200-sxm": "h200", "rtx-4090": "rtx4090", "4090": "rtx4090"}
    if key in alias:
        return GPUS[alias[key]]
    raise UsageError(
        f"there is no GPU {name} in the table",
        f"take one of {', '.join(GPUS)}, or give --memory, --bandwidth and --peak",
    )
