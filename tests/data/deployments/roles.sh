#!/bin/bash
MODEL=Qwen/Qwen3-8B
CUDA_VISIBLE_DEVICES=0 vllm serve $MODEL --port 8100 --max-num-batched-tokens 16384 \
  --kv-transfer-config '{"kv_connector":"P2pNcclConnector","kv_role":"kv_producer","kv_rank":0,"kv_parallel_size":2}' &
CUDA_VISIBLE_DEVICES=1 vllm serve $MODEL --port 8200 --max-num-seqs 64 \
  --kv-transfer-config '{"kv_connector":"P2pNcclConnector","kv_role":"kv_consumer","kv_rank":1,"kv_parallel_size":2}' &
python3 toy_proxy_server.py --port 8000 &
wait
