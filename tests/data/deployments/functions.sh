#!/bin/bash
# four servers behind a proxy
start_server() {
  local port=$1 gpu=$2
  CUDA_VISIBLE_DEVICES=$gpu vllm serve "$MODEL" --port $port \
    --gpu-memory-utilization 0.9 "${ARGS[@]}" > /tmp/log.$port 2>&1 &
}
never() {
  vllm serve Qwen/Qwen3-32B
}
MODEL=Qwen/Qwen3-8B
ARGS=(--max-model-len 16384 --kv-cache-dtype fp8)
[ "$MODEL" = other ] && never
for i in 0 1 2 3; do
  start_server $((8000+i)) $i
done
wait
