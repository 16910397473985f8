# SPDX-License-Identifier: MIT
#
# The operators of csrc/torch/cuda as a shared object, for CPU tensors and the emulated device.
#
#   make -f operators.mk TORCH_FLAGS=... TORCH_LIBRARIES=...
#
# The flags find torch's headers; the other is where its libraries lie.

override KIND_FLAGS := -O1 -fPIC
BUILD := build-operators

operators: $(BUILD)/operators.so
.PHONY: operators

include Makefile

# Torch's own operators are called by way of torch_device.cpp, which also has what the CPU build of
# torch lacks.
TORCH_OBJECTS := $(BUILD)/torch_device.o $(patsubst $(CSRC)/torch/cuda/%.cpp,$(BUILD)/torch/%.o,\
                                                    $(wildcard $(CSRC)/torch/cuda/*.cpp))
$(BUILD)/operators.so: $(TORCH_OBJECTS) $(OBJECTS)
	$(CXX) -shared -Wl,-Bsymbolic,--wrap=torch_call_dispatcher -o $@ $^ \
	    -L$(TORCH_LIBRARIES) -ltorch_cpu -lm

COMPILE_FOR_TORCH := $(CXX) -std=c++20 $(WARNINGS) $(COMMON_FLAGS) $(KIND_FLAGS) $(TORCH_FLAGS) \
                     -DUSE_CUDA -DS2_EMULATED -MMD -MP -c

$(BUILD)/torch_device.o: $(HERE)/emulator/torch_device.cpp
	@mkdir -p $(@D)
	$(COMPILE_FOR_TORCH) -o $@ $<

$(BUILD)/torch/%.o: $(CSRC)/torch/cuda/%.cpp
	@mkdir -p $(@D)
	$(COMPILE_FOR_TORCH) -fvisibility=hidden -o $@ $<

-include $(wildcard $(BUILD)/torch/*.d)
