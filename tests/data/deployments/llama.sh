llama-server -hf unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF:Q4_K_M -fa -ngl 99 -c 65536 -np 4 -ctk q8_0 -ctv q8_0 --jinja --temp 0.7 --host 0.0.0.0
