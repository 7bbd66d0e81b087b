"""Variables of programs that measure NCCL, and of those that load GPUs."""

# NVLS allocates multicast memory on the NVSwitches; a program that crashes can leave it unusable for others
# until the GPUs are reset.
ENVIRONMENT = {"NCCL_DEBUG": "INFO", "NCCL_NVLS_ENABLE": "0"}
MPS_FOLDER, NO_MPS = "CUDA_MPS_PIPE_DIRECTORY", "/proc/none"
"""Variable for the folder in which libcuda looks for an MPS server, and one that does not exist.

Without the variable it is a folder in /tmp, which any user can create first, and which a server of root can
permit all users to write.
"""
