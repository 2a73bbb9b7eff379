"""Workspaces of convolutions, by the installed cuDNN's own answer for a described card, else by class of layer."""

from memfit.hardware.cudnn.finding import installed_version, version_of_torch, version_text
from memfit.hardware.cudnn.question import BACKWARD_DATA, BACKWARD_WEIGHT, FORWARD, ConvolutionCall
from memfit.hardware.cudnn.workspace import Workspace, answering, convolution_workspace

__all__ = ["BACKWARD_DATA", "BACKWARD_WEIGHT", "FORWARD", "ConvolutionCall", "Workspace", "answering", "convolution_workspace",
           "installed_version", "version_of_torch", "version_text"]
