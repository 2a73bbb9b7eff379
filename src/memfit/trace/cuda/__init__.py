"""What a CUDA card does otherwise than the CPU, for traces on fake CPU tensors: operators, types, kernels and their scratch."""

from memfit.trace.cuda.target import CudaTarget, target_of

__all__ = ["CudaTarget", "target_of"]
