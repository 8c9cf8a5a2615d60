# What `make peers` runs: a virtual environment for each engine that benchmarks/peers.py compares, and the default
# model in the form it takes. Each ends with a trial that generates a token; only then is it ready.

PYTHON ?= python3
OURS ?= .venv/bin/python
TRIAL := $(OURS) -m benchmarks.engines.trial
FOLDER = $$($(OURS) -m benchmarks.engines.default_model)
GGUF = $$($(OURS) -m benchmarks.engines.default_model --gguf)
PIP = $(@D)/bin/python -m pip --disable-pip-version-check

.PHONY: peers
.DELETE_ON_ERROR:

peers: .peers/openvino/.ready .peers/llama_cpp/.ready .peers/vllm/.ready

# torchvision and torchaudio come along from elsewhere and do not fit this torch; transformers fails beside them.
.peers/openvino/.ready: benchmarks/engines/openvino.txt
	$(PYTHON) -m venv $(@D)
	$(PIP) install --requirement $<
	$(PIP) uninstall --yes torchvision torchaudio
	rm -rf $(@D)/model
	$(@D)/bin/optimum-cli export openvino --model "$(FOLDER)" --task text-generation-with-past --weight-format int8 \
		$(@D)/model
	$(TRIAL) openvino
	@touch $@

# GCC before 13 forgets what it stored for AMX's tile configuration unless dead stores are kept.
.peers/llama_cpp/.ready: export CMAKE_BUILD_PARALLEL_LEVEL := 1
.peers/llama_cpp/.ready: export CMAKE_ARGS := -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAVA_BUILD=OFF \
	-DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_TESTS=OFF \
	-DLLAMA_OPENSSL=OFF -DCMAKE_CXX_FLAGS='-fno-dse -fno-tree-dse'
.peers/llama_cpp/.ready: benchmarks/engines/llama_cpp.txt
	$(PYTHON) -m venv $(@D)
	nice -n 19 $(PIP) install --no-cache-dir --no-binary llama-cpp-python --requirement $<
	ln -sfn "$(GGUF)" $(@D)/model.gguf
	$(TRIAL) llama.cpp
	@touch $@

# Its first start compiles for minutes, into .peers/vllm/cache.
.peers/vllm/.ready: benchmarks/engines/vllm.txt
	$(PYTHON) -m venv $(@D)
	$(PIP) install --requirement $<
	$(PIP) uninstall --yes torchvision torchaudio torchcodec
	ln -sfn "$(FOLDER)" $(@D)/model
	$(TRIAL) vllm
	@touch $@
