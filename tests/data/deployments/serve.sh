#!/usr/bin/env bash
# serves on all GPUs of this box
set -euo pipefail
MODEL=${MODEL:-Qwen/Qwen2.5-7B-Instruct}
: "${SEQS:=96}"
export HF_HOME=/data/hf
EXTRA=(--enable-prefix-caching --kv-cache-dtype fp8)
EXTRA+=(--max-num-batched-tokens 16384)
ARGS="--max-model-len ${1:-16384}"
ARGS+=" --block-size 32"
mkdir -p logs && echo "starting ${MODEL}"
for i in {0..3}; do
  CUDA_VISIBLE_DEVICES=$i nohup vllm serve "$MODEL" --port $((8000 + i)) \
    --max-num-seqs "$SEQS" "${EXTRA[@]}" $ARGS > logs/$i.log 2>&1 &
done
wait
