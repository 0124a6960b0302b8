#!/usr/bin/env bash
# Prepares /opt/holdfast-dlrover, a virtual environment with DLRover and the PyTorch that it starts with (hack/dlrover.txt; grpcio and
# protobuf are not among what DLRover asks for, and it does not start without them). make bench-checkpoint alone needs it.
name=dlrover
. "$(dirname "$0")/environment.sh"

wanted=$(sha256sum <hack/dlrover.txt)
begin
say "installing DLRover and its PyTorch from PyPI (about 3 GB, 6 GB in $dir, some minutes)"
pip_install -r hack/dlrover.txt
finish 'import dlrover.trainer.torch.flash_checkpoint.ddp'
