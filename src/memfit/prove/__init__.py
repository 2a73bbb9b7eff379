"""Plain against planned, in fresh processes, under an enforced limit: the verdict."""

from memfit.prove.proof import error_of, prove_job, prove_target

__all__ = ["error_of", "prove_job", "prove_target"]
