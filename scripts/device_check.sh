#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# All that takes a CUDA device, on a machine with one of them, in less than four minutes:
#
#   scripts/device_check.sh [FILE]      default: benchmarks/results/device.json
#
# The package is built in place, with S2_CUDA=1.  Wanted are make, gcc, g++, nvcc, compute-sanitizer
# and a Python ($PYTHON, else python3) with a torch that has CUDA, setuptools, pytest, hypothesis.
#
# Status: 0 if all steps have passed, 1 if one has failed, 77 if there is no device.
set -euo pipefail

if ! device=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null); then
    echo 'device_check.sh needs a CUDA device, and nvidia-smi finds none here.' >&2
    exit 77
fi
exec "${PYTHON:-python3}" "$(dirname "$0")/device_check.py" --device "${device%%$'\n'*}" "$@"
